"""Scores as the JSON of `wire.GenerateResponse`. Knows no HTTP.

Plain dicts and tuples, as in answer.py: a batch of long prompts has tens of thousands of tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from pydantic_core import to_json

from mlxscore_server.engine import Scored
from mlxscore_server.generations import Generation
from mlxscore_server.pieces import Pieces
from mlxscore_server.routes.finite import check_finite
from mlxscore_server.row import Row, RowScore

_Entries = list[tuple[float | None, int, str | None]]


class GenerateAnswer:
    """One answer to `POST /generate`: an object for a single prompt, else a list."""

    def __init__(
        self, generations: Sequence[Generation], pieces: Pieces, *, single: bool, with_text: bool
    ) -> None:
        self._generations = generations
        self._pieces = pieces
        self._single = single
        self._with_text = with_text
        self.rows: list[Row] = []
        self._params: list[str] = []
        for one in generations:
            rows = one.rows
            self.rows += rows
            self._params += [one.param] * len(rows)

    @property
    def numbers(self) -> int:
        """About how many numbers the answer holds."""
        return sum(
            2 * (len(one.ids) - one.start + 1) * (1 + one.top) + 2 * len(one.token_ids)
            for one in self._generations
            if one.logprobs
        )

    def param(self, row: int) -> str | None:
        """The path of the prompt that a row scores."""
        return self._params[row] if row < len(self._params) else None

    def to_json(self, scored: Scored) -> bytes:
        """The body, from the rows' scores in order."""
        for score, param in zip(scored.scores, self._params, strict=True):
            check_finite(score, param)
        scores = iter(scored.scores)
        answers = [self._answer(one, scores, scored.cached_tokens) for one in self._generations]
        return to_json(answers[0] if self._single else answers)

    def _answer(self, one: Generation, scores: Iterator[RowScore], cached: int) -> dict[str, Any]:
        score = None if one.row is None else next(scores)
        new = [] if score is None or score.next_id is None else [score.next_id]
        meta: dict[str, Any] = {
            "id": one.rid,
            "finish_reason": {"type": "length", "length": one.new_tokens},
            "prompt_tokens": len(one.ids),
            "completion_tokens": len(new),
            "cached_tokens": cached,
        }
        if one.logprobs:
            self._add_logprobs(meta, one, score, new)
        if len(one.token_ids):
            values = [float(next(scores).logprobs[0]) for _ in one.token_ids]
            meta["input_token_ids_logprobs"] = [None]
            meta["output_token_ids_logprobs"] = [self._entries(values, one.token_ids.tolist())]
        text = "".join(map(self._pieces.text, new))
        return {"text": text, "output_ids": new, "meta_info": meta}

    def _add_logprobs(
        self, meta: dict[str, Any], one: Generation, score: RowScore | None, new: list[int]
    ) -> None:
        values: list[float] = [] if score is None else score.logprobs.tolist()
        ids: list[int] = one.ids[one.start :].tolist()
        # The first has no logprob: SGLang's place for what the model was asked from on.
        given = len(ids) - 1
        meta["input_token_logprobs"] = self._entries([None, *values[:given]], ids)
        meta["output_token_logprobs"] = self._entries(values[given:], new)
        if one.top:
            tops: list[_Entries] = []
            if score is not None and score.top_ids is not None and score.top_logprobs is not None:
                best = zip(score.top_logprobs.tolist(), score.top_ids.tolist(), strict=True)
                tops = [self._entries(*pair) for pair in best]
            meta["input_top_logprobs"] = [None, *tops[:given]]
            meta["output_top_logprobs"] = tops[given:]

    def _entries(self, logprobs: Sequence[float | None], ids: Sequence[int]) -> _Entries:
        texts = map(self._pieces.text, ids) if self._with_text else repeat(None, len(ids))
        return list(zip(logprobs, ids, texts, strict=True))
