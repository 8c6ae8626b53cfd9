"""Scores as the JSON of `wire.CompletionResponse`. Knows no HTTP.

Plain dicts and lists, as in answer.py: an echo of 64 prompts has tens of thousands of tokens.
"""

import math
import time
import uuid
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from pydantic_core import to_json

from mlxscore_client import wire
from mlxscore_server.engine import Scored
from mlxscore_server.offsets import text_and_offsets
from mlxscore_server.prompts import Asked, EncodedPrompt
from mlxscore_server.routes.finite import check_finite
from mlxscore_server.row import Row, RowScore
from mlxscore_server.tokens import Encoder


class CompletionAnswer:
    """One answer to `POST /v1/completions`."""

    def __init__(
        self,
        card: wire.ModelCard,
        encoder: Encoder,
        request: wire.CompletionRequest,
        asked: Asked,
        prompts: Sequence[EncodedPrompt],
    ) -> None:
        self._card = card
        self._encoder = encoder
        self._with_ids = bool(request.return_token_ids)
        self._asked = asked
        self._prompts = prompts
        self._names = _Names(encoder, as_ids=bool(request.return_tokens_as_token_ids))
        self.rows: list[Row] = [p.row for p in prompts if p.row is not None]

    @property
    def numbers(self) -> int:
        """About how many numbers the answer holds: what building it costs."""
        per_token = 4 + (self._asked.top or 0) + 3 * (self._asked.prompt_top or 0)
        return sum(len(prompt.ids) for prompt in self._prompts) * per_token

    def to_json(self, scored: Scored) -> bytes:
        """The body, from the rows' scores in order."""
        scores = iter(scored.scores)
        choices = [
            self._choice(i, prompt, None if prompt.row is None else next(scores))
            for i, prompt in enumerate(self._prompts)
        ]
        prompt_tokens = sum(len(prompt.ids) for prompt in self._prompts)
        completion_tokens = len(self._prompts) if self._asked.next_token else 0
        return to_json(
            {
                "id": f"cmpl-{uuid.uuid4().hex}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": self._card.id,
                "system_fingerprint": self._card.system_fingerprint,
                "choices": choices,
                "usage": {
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": completion_tokens,
                    "total_tokens": prompt_tokens + completion_tokens,
                    "prompt_tokens_details": {"cached_tokens": scored.cached_tokens},
                    "computed_tokens": scored.computed_tokens,
                    "cached_tokens": scored.cached_tokens,
                },
            }
        )

    def param(self, row: int) -> str | None:
        """The path of the prompt that a row scores."""
        with_row = [prompt.param for prompt in self._prompts if prompt.row is not None]
        return with_row[row] if row < len(with_row) else None

    def _choice(self, index: int, prompt: EncodedPrompt, score: RowScore | None) -> dict[str, Any]:
        asked = self._asked
        if score is not None:
            check_finite(score, prompt.param)
        ids: list[int] = prompt.ids.tolist()
        new = [] if score is None or score.next_id is None else [score.next_id]
        text, offsets = text_and_offsets(self._encoder, prompt.text, ids, new)
        if not asked.echo:
            skipped = offsets[len(ids)] if new else len(text)
            text, offsets = text[skipped:], [offset - skipped for offset in offsets[len(ids) :]]
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
        if asked.top is not None:
            choice["logprobs"] = self._logprobs(ids, new, score, offsets)
        if asked.prompt_top is not None:
            choice["prompt_logprobs"] = [None, *self._prompt_logprobs(ids, score)]
        if self._with_ids:
            choice["prompt_token_ids"], choice["token_ids"] = ids, new
        return choice

    def _logprobs(
        self, ids: list[int], new: list[int], score: RowScore | None, offsets: list[int]
    ) -> dict[str, Any]:
        echo = self._asked.echo
        shown = [*ids, *new] if echo else new
        # An echo begins with the token that has no score.
        unscored = 1 if echo else 0
        names = [self._names[token_id] for token_id in shown]
        values: list[float] = []
        tops: list[dict[str, float]] = []
        if score is not None and len(shown) > unscored:
            last = len(shown) - unscored  # without echo, only the new token of those scored
            values = score.logprobs[-last:].tolist()
            tops = self._tops(names[unscored:], values, score, last)
        empty: list[None] = [None] * unscored
        return {
            "tokens": names,
            "token_logprobs": [*empty, *values],
            "top_logprobs": [*empty, *tops],
            "text_offset": offsets,
        }

    def _tops(
        self, names: list[str], values: list[float], score: RowScore, last: int
    ) -> list[dict[str, float]]:
        """For each position, the k best and the actual token, best first.

        Where two ids read alike the larger value stays, so that the largest of all is never lost:
        lm-evaluation-harness takes a token that has it for the greedy one.
        """
        k = self._asked.top
        if not k or score.top_ids is None or score.top_logprobs is None:
            return [{name: value} for name, value in zip(names, values, strict=True)]
        name_of = self._names.__getitem__
        found: list[dict[str, float]] = []
        best = zip(
            names,
            values,
            score.top_ids[-last:, :k].tolist(),
            score.top_logprobs[-last:, :k].tolist(),
            strict=True,
        )
        for name, value, ids, logprobs in best:
            top = dict(zip(map(name_of, ids), logprobs, strict=True))
            if len(top) < k:
                top = {}
                for token_id, logprob in zip(ids, logprobs, strict=True):
                    top.setdefault(name_of(token_id), logprob)
            if top.get(name, -math.inf) < value:
                top[name] = value
            found.append(top)
        return found

    def _prompt_logprobs(self, ids: list[int], score: RowScore | None) -> list[dict[str, Any]]:
        """By id, as vLLM has it: the actual token, then the k best."""
        if score is None or len(ids) == 1:
            return []
        assert score.ranks is not None, "this is a bug: prompt_logprobs without ranks"
        k, count = self._asked.prompt_top, len(ids) - 1
        tops: Any = repeat(((), ()), count)
        if k and score.top_ids is not None and score.top_logprobs is not None:
            tops = zip(
                score.top_ids[:count, :k].tolist(),
                score.top_logprobs[:count, :k].tolist(),
                strict=True,
            )
        rows = zip(
            ids[1:],
            score.logprobs[:count].tolist(),
            score.ranks[:count].tolist(),
            tops,
            strict=True,
        )
        found: list[dict[str, Any]] = []
        for token_id, logprob, rank, (top_ids, top) in rows:
            entry = {str(token_id): self._ranked(token_id, logprob, rank)}
            for place, (other, value) in enumerate(zip(top_ids, top, strict=True), start=1):
                entry.setdefault(str(other), self._ranked(other, value, place))
            found.append(entry)
        return found

    def _ranked(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self._encoder.pieces.text(token_id)
        return {"logprob": logprob, "rank": rank, "decoded_token": text}


class _Names(dict[int, str]):
    """Tokens as the answer writes them; the same few come again and again."""

    def __init__(self, encoder: Encoder, *, as_ids: bool) -> None:
        super().__init__()
        self._text = encoder.pieces.text
        self._as_ids = as_ids

    def __missing__(self, token_id: int) -> str:
        name = f"token_id:{token_id}" if self._as_ids else self._text(token_id)
        self[token_id] = name
        return name
