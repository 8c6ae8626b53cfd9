"""What a model answers by itself: rows with the logprobs of its own `__call__`, one row at a time."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx, to_numpy
from mlxscore_server.head import Project
from mlxscore_server.row import Ids, Row
from mlxscore_server.scoring import BatchScorer

Logprobs = NDArray[np.float64]
Answered = list[tuple[Row, Logprobs]]
"""Rows, every position scored, each with its own (k,) logprobs in nats."""

_LONGEST_WINDOW = 512
"""Windows up to this are crossed by the rows; a longer one costs too much at each start."""


class Probe:
    """Rows of random ids for one model, each kind answered once, when it is first asked for.

    Answered by MLX's own kernels, whatever the scorer uses.
    """

    def __init__(self, scorer: BatchScorer, model: nn.Module) -> None:
        self._scorer = scorer
        self._model = model

    @cached_property
    def unequal(self) -> Answered:
        """Rows of unequal length, the longest last and beyond the model's windows."""
        rng = np.random.default_rng(0)
        lengths = (3, 8, max(25, self._window + 9))
        return self._answered([self._ids(rng, length) for length in lengths])

    @cached_property
    def equal(self) -> Answered:
        """Rows of one length."""
        rng = np.random.default_rng(2)
        return self._answered([self._ids(rng, 12) for _ in range(3)])

    @cached_property
    def sharing(self) -> Answered:
        """Rows with a prefix in common, of several lengths, with long and short ends; and without one."""
        rng = np.random.default_rng(1)
        # No more than it takes: on a CPU each hundred tokens are half a second of every start.
        base, question = self._ids(rng, max(20, self._window + 9)), self._ids(rng, 18)
        ends = [*(np.append(question, self._ids(rng, n)) for n in (1, 2, 4)), self._ids(rng, 20)]
        alone = [self._ids(rng, length) for length in (3, 12, 13)]
        return self._answered([*(np.append(base, end) for end in ends), *alone])

    def logprobs(self, row: Row) -> Logprobs:
        """(k,) float64 logprobs of a row through the model's own call: alone, unpadded, full logits."""
        model = cast(Project, self._model)
        logits = to_numpy(model(to_mlx(row.inputs)[None])[0].astype(mx.float32))
        logits = logits[row.start - 1 :].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        lse = np.log(np.exp(logits).sum(axis=-1))
        return logits[np.arange(len(logits)), row.targets] - lse

    @cached_property
    def _window(self) -> int:
        windows = [getattr(layer, "max_size", 0) or 0 for layer in make_prompt_cache(self._model)]
        return max((w for w in windows if w <= _LONGEST_WINDOW), default=0)

    def _ids(self, rng: np.random.Generator, length: int) -> Ids:
        return rng.integers(0, self._scorer.head.num_embeddings, length).astype(np.int32)

    def _answered(self, texts: Sequence[Ids]) -> Answered:
        rows = [Row(ids, 1) for ids in texts]
        with _mlx_kernels(self._scorer):
            return [(row, self.logprobs(row)) for row in rows]


@contextmanager
def _mlx_kernels(scorer: BatchScorer) -> Generator[None]:
    numpy_kernels = scorer.numpy_kernels
    scorer.use_numpy_kernels(False)
    try:
        yield
    finally:
        scorer.use_numpy_kernels(numpy_kernels)
