"""Scores as the JSON of `wire.ScoreResponse`. Knows no HTTP, no engine.

Written as plain dicts: a request for the 20 most likely tokens of 20,000 has 400,000 of them, and
to check each against a pydantic model takes longer than a GPU takes to score. The tests hold this
to `wire`.
"""

import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from mlxscore_client import wire
from mlxscore_server.engine import Scored
from mlxscore_server.errors import NonFiniteLogits
from mlxscore_server.names import ScoreNames
from mlxscore_server.pairs import EncodedItem, EncodedPair
from mlxscore_server.pieces import Pieces
from mlxscore_server.row import Row, RowScore
from mlxscore_server.whole_text import EncodedText


class ScoreAnswer:
    """One answer to `POST /score`; `rows` and `scores` are those of all items' parts in order."""

    def __init__(
        self,
        card: wire.ModelCard,
        pieces: Pieces,
        request: wire.ScoreRequest,
        items: Sequence[EncodedItem | EncodedText],
        rows: Sequence[Row],
    ) -> None:
        self._card = card
        self._pieces = pieces
        self._request = request
        self._items = items
        self.rows = rows
        self._seen: dict[int, dict[str, Any]] = {}

    @property
    def numbers(self) -> int:
        """About how many numbers the answer holds: what building it costs."""
        if not any(row.ranks for row in self.rows):
            return 4 * len(self.rows)
        targets = sum(row.num_targets for row in self.rows)
        return 4 * targets * (1 + self._request.top_logprobs)

    def to_json(self, scored: Scored) -> bytes:
        results: list[dict[str, Any]] = []
        at = 0
        for index, encoded in enumerate(self._items):
            results.append(self.result(index, at, scored.scores))
            at += len(encoded.parts)
        prompt_tokens = sum(len(row.ids) for row in self.rows)
        return to_json(
            {
                "id": f"score-{uuid.uuid4().hex}",
                "object": "score",
                "created": int(time.time()),
                "model": self._card.id,
                "system_fingerprint": self._card.system_fingerprint,
                "results": results,
                "usage": {
                    "prompt_tokens": prompt_tokens,
                    "total_tokens": prompt_tokens,
                    "computed_tokens": scored.computed_tokens,
                    "cached_tokens": scored.cached_tokens,
                },
            }
        )

    def result(self, index: int, at: int, scores: Sequence[RowScore]) -> dict[str, Any]:
        """That of one item, whose first row is `at`. Raises NonFiniteLogits."""
        item, encoded = self._request.items[index], self._items[index]
        result: dict[str, Any] = {"index": index}
        if item.id is not None:
            result["id"] = item.id
        result["context_tokens"] = encoded.context_tokens
        result["truncated_tokens"] = encoded.truncated_tokens
        scores = scores[at : at + len(encoded.parts)]
        if isinstance(encoded, EncodedText):
            result["scores"] = [self._whole(at, encoded, scores)]
        else:
            result["scores"] = [
                self._score(j, at + j, pair, score)
                for j, (pair, score) in enumerate(zip(encoded.pairs, scores, strict=True))
            ]
        return result

    def param(self, row: int) -> str | None:
        """The path of the continuation, or the whole text, that a row scores."""
        for index, (item, encoded) in enumerate(zip(self._request.items, self._items, strict=True)):
            if row < len(encoded.parts):
                names = ScoreNames(f"items[{index}]", item)
                whole = isinstance(encoded, EncodedText)
                return names.context if whole else names.continuation(row).param
            row -= len(encoded.parts)
        return None

    def _score(self, index: int, at: int, pair: EncodedPair, score: RowScore) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "index": index,
            "loglikelihood": self._loglikelihood(at, score),
            "is_greedy": score.is_greedy,
            "num_tokens": len(score.logprobs),
            "num_bytes": pair.num_bytes,
            "num_chars": pair.num_chars,
            "merged_boundary": pair.merged_boundary,
        }
        if score.ranks is not None:
            answer["tokens"] = self._tokens(at, score)
        return answer

    def _whole(self, at: int, text: EncodedText, scores: Sequence[RowScore]) -> dict[str, Any]:
        loglikelihood = math.fsum(self._loglikelihood(at + i, s) for i, s in enumerate(scores))
        num_tokens = sum(len(score.logprobs) for score in scores)
        answer: dict[str, Any] = {
            "index": 0,
            "loglikelihood": loglikelihood,
            "is_greedy": all(score.is_greedy for score in scores),
            "num_tokens": num_tokens,
            "num_bytes": text.num_bytes,
            "num_chars": text.num_chars,
            "merged_boundary": False,
            "num_words": text.num_words,
            "num_windows": len(scores),
            **text.figures(loglikelihood, num_tokens),
        }
        if scores[0].ranks is not None:
            answer["tokens"] = [
                token for i, score in enumerate(scores) for token in self._tokens(at + i, score)
            ]
        return answer

    def _loglikelihood(self, at: int, score: RowScore) -> float:
        # JSON has no NaN and no infinity; a sum is finite exactly where its float32 terms are.
        loglikelihood = score.loglikelihood
        if not math.isfinite(loglikelihood):
            raise self._non_finite(at)
        return loglikelihood

    def _tokens(self, at: int, score: RowScore) -> list[dict[str, Any]]:
        assert score.ranks is not None, "this is a bug: tokens without ranks"
        tokens = [
            {**self._token(token_id), "logprob": logprob, "rank": rank}
            for token_id, logprob, rank in zip(
                self.rows[at].targets.tolist(),
                score.logprobs.tolist(),
                score.ranks.tolist(),
                strict=True,
            )
        ]
        if score.among_logprobs is not None:
            if not math.isfinite(float(score.among_logprobs.sum(dtype="float64"))):
                raise self._non_finite(at)
            for token, logprob in zip(tokens, score.among_logprobs.tolist(), strict=True):
                token["space_logprob"] = logprob
        if score.top_ids is not None and score.top_logprobs is not None:
            if not math.isfinite(float(score.top_logprobs.sum(dtype="float64"))):
                raise self._non_finite(at)
            tops = zip(tokens, score.top_ids.tolist(), score.top_logprobs.tolist(), strict=True)
            for token, ids, logprobs in tops:
                token["top"] = [
                    {**self._token(token_id), "logprob": logprob}
                    for token_id, logprob in zip(ids, logprobs, strict=True)
                ]
        return tokens

    def _token(self, token_id: int) -> dict[str, Any]:
        """Id, text and bytes; the same few tokens come again and again."""
        known = self._seen.get(token_id)
        if known is None:
            piece = self._pieces.piece(token_id)
            text = self._pieces.text(token_id)
            known = self._seen[token_id] = {"id": token_id, "text": text, "bytes": list(piece)}
        return known

    def _non_finite(self, at: int) -> NonFiniteLogits:
        return NonFiniteLogits(
            "the model gave a number that is not finite for this row", param=self.param(at)
        )
