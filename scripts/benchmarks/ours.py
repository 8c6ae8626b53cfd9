"""This project as a contestant: the one place of the bench that knows the scorer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import mlx.core as mx

from benchmarks.models import Model
from benchmarks.rows_file import Scores
from mlxscore_server.device import Device
from mlxscore_server.row import Row
from mlxscore_server.scoring import BatchScorer


@dataclass(frozen=True)
class Counts:
    """What one pass did."""

    computed_tokens: int = 0
    padded_tokens: int = 0
    """What the model was given, padding included."""
    micro_batches: int = 0
    planning_seconds: float = 0.0


class Ours:
    """A scorer as the server makes it, self-check and warm-up included."""

    def __init__(self, model: Model, device: Device) -> None:
        self.loaded: Any = None
        """For an engine; None where the server's packages are missing."""
        try:
            self.loaded = _loaded(model, device)
            self._scorer: Any = self.loaded.scorer
        except ImportError:
            self._scorer = BatchScorer(model.model, device)
        self.max_batch_tokens: int = self._scorer.max_batch_tokens
        self.layout: str = self._scorer.layout
        self.vocab_size: int = self._scorer.head.num_embeddings
        self.counts = Counts()
        """What the last pass did."""
        self._warm_with: object = None
        self.release()
        self.weight_bytes = mx.get_active_memory()

    def described(self) -> dict[str, str]:
        return {"layout": self.layout, "tokens of a micro-batch": f"{self.max_batch_tokens:,}"}

    def cold(self, rows: Sequence[Row]) -> tuple[float, Scores]:
        """Seconds and scores, with nothing kept from before."""
        self._scorer.kept.clear()
        self._warm_with = rows
        return self._score(rows)

    def warm(self, rows: Sequence[Row]) -> tuple[float, Scores]:
        """An exact repeat of the same rows."""
        if self._warm_with is not rows:
            self.cold(rows)
        return self._score(rows)

    def flat(self, rows: Sequence[Row]) -> tuple[float, Scores]:
        """Each row by itself: nothing is shared, not even equal inputs, and nothing is kept."""
        self.release()
        kept = self._scorer.kept
        max_bytes, kept.max_bytes = kept.max_bytes, 0
        try:
            # Rows of different salt have nothing in common.
            return self._score([replace(row, salt=i.to_bytes(4)) for i, row in enumerate(rows)])
        finally:
            kept.max_bytes = max_bytes

    def answers(self, rows: Sequence[Row]) -> list[Any]:
        """Whole answers, with nothing kept from before."""
        self._scorer.kept.clear()
        return self._scorer.score_rows(rows)

    def release(self) -> None:
        """Leave the device's memory to others."""
        self._scorer.kept.clear()
        self._warm_with = None
        mx.clear_cache()

    def _score(self, rows: Sequence[Row]) -> tuple[float, Scores]:
        fresh = [replace(row) for row in rows]  # a row may remember what was derived from it
        before = replace(self._scorer.stats)
        started = time.perf_counter()
        answers = self._scorer.score_rows(fresh)
        seconds = time.perf_counter() - started
        after = self._scorer.stats
        self.counts = Counts(
            *(getattr(after, f.name) - getattr(before, f.name) for f in fields(Counts))
        )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return seconds, [answer.logprobs for answer in answers]


def _loaded(model: Model, device: Device) -> Any:
    from benchmarks.byte_tokenizer import byte_tokenizer
    from mlxscore_server.model import make_ready
    from mlxscore_server.settings import Settings

    mx.set_cache_limit(device.cache_bytes)
    return make_ready(
        model.model,
        model.tokenizer or byte_tokenizer(),
        model.config,
        Settings(),
        device=device,
        name="bench",
        dtype="float32" if device.name == "cpu" else "bfloat16",
    )
