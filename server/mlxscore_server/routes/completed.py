"""Scores as the JSON of `wire.SequenceLogprobsResponse`, with lists or with arrays. Knows no HTTP."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from mlxscore_server.engine import Scored
from mlxscore_server.routes.finite import check_finite
from mlxscore_server.row import Row, RowScore


@dataclass(frozen=True)
class CompletedSequence:
    """One sequence, and the row that answers it."""

    param: str
    length: int
    """Tokens of the completion."""
    row: Row | None
    """None where the completion is empty."""


class SequencesAnswer:
    """One answer to `POST /get_sequence_logprobs/`."""

    def __init__(
        self, sequences: Sequence[CompletedSequence], top_logprobs: int, *, binary: bool
    ) -> None:
        self._sequences = sequences
        self._k = top_logprobs
        self._binary = binary
        self._scored = [s for s in sequences if s.row is not None]
        self.rows: list[Row] = [s.row for s in sequences if s.row is not None]

    @property
    def numbers(self) -> int:
        """About how many numbers the answer holds."""
        return sum(sequence.length for sequence in self._sequences) * 2 * (self._k + 1)

    def param(self, row: int) -> str | None:
        """The path of the sequence that a row scores."""
        return self._scored[row].param if row < len(self._scored) else None

    def to_json(self, scored: Scored) -> bytes:
        """The body, from the rows' scores in order."""
        for sequence, score in zip(self._scored, scored.scores, strict=True):
            check_finite(score, sequence.param)
        answers = iter(scored.scores)
        scores = [None if s.row is None else next(answers) for s in self._sequences]
        return to_json(self._arrays(scores) if self._binary else self._lists(scores))

    def _lists(self, scores: Sequence[RowScore | None]) -> dict[str, Any]:
        logprobs: list[list[list[float]]] = []
        token_ids: list[list[list[int]]] = []
        for sequence, score in zip(self._sequences, scores, strict=True):
            values: list[list[float]] = [[] for _ in range(sequence.length)]
            ids: list[list[int]] = [[] for _ in range(sequence.length)]
            if sequence.row is not None and score is not None:
                targets = sequence.row.targets
                missing = np.ones(len(targets), np.bool_)
                if score.top_ids is not None and score.top_logprobs is not None:
                    values, ids = score.top_logprobs.tolist(), score.top_ids.tolist()
                    missing = (score.top_ids != targets[:, None]).all(axis=1)
                for at in np.flatnonzero(missing).tolist():
                    values[at].append(float(score.logprobs[at]))
                    ids[at].append(int(targets[at]))
            logprobs.append(values)
            token_ids.append(ids)
        return {"logprobs": logprobs, "logprob_token_ids": token_ids}

    def _arrays(self, scores: Sequence[RowScore | None]) -> dict[str, Any]:
        lengths = [sequence.length for sequence in self._sequences]
        shape = (len(lengths), max(lengths), self._k)
        logprobs, ids = np.full(shape, -np.inf, "<f4"), np.zeros(shape, "<i4")
        actual_logprobs = np.full((*shape[:2], 1), -np.inf, "<f4")
        actual_ids = np.zeros((*shape[:2], 1), "<i4")
        for i, (sequence, score) in enumerate(zip(self._sequences, scores, strict=True)):
            if sequence.row is None or score is None:
                continue
            actual_logprobs[i, : sequence.length, 0] = score.logprobs
            actual_ids[i, : sequence.length, 0] = sequence.row.targets
            if score.top_ids is not None and score.top_logprobs is not None:
                logprobs[i, : sequence.length] = score.top_logprobs
                ids[i, : sequence.length] = score.top_ids
        return {
            "logprobs_b64": _base64(logprobs),
            "token_ids_b64": _base64(ids),
            "actual_logprobs_b64": _base64(actual_logprobs),
            "actual_token_ids_b64": _base64(actual_ids),
            "shape": list(shape),
            "completion_lengths": lengths,
        }


def _base64(array: NDArray[Any]) -> str:
    return b64encode(array.tobytes()).decode()
