"""How many tokens a micro-batch should hold on this device with this model: measured at start."""

import logging
import time

import mlx.core as mx
import numpy as np

from mlxscore_server.row import Row
from mlxscore_server.scoring import BatchScorer

log = logging.getLogger("mlxscore")

_SIZES = (1024, 2048, 4096, 8192, 16384)
_ROW = 256
# The smallest size that is this near to the fastest: what is gained above it is not worth the memory, nor
# a newcomer's wait. Of 1B on one H200 that is 16,384 tokens, of 8B 4,096. 32,768 are not tried: 2% more
# than 16,384 for 1B, and twice the memory.
_NEAR = 0.95
# A pass that takes longer than this ends the search: larger ones would only delay the start.
_SECONDS = 1.0


def tune(scorer: BatchScorer, budget_bytes: int) -> None:
    """Set `max_batch_tokens` to where tokens a second no longer grow much, within a memory budget.

    All sizes are measured, since one slow pass must not end the search.

    `budget_bytes` holds all of MLX's memory: weights, kept prefixes, and what a micro-batch takes,
    which is measured at each size and taken to grow in proportion.
    """
    fixed = mx.get_active_memory() + scorer.kept.max_bytes
    kept_bytes, scorer.kept.max_bytes = scorer.kept.max_bytes, 0
    rates: dict[int, float] = {}
    peak = 0
    try:
        for size in _SIZES:
            if peak and fixed + 2 * peak > budget_bytes:
                log.info("micro-batches of %d tokens would not fit into the memory budget", size)
                break
            rates[size], seconds, peak = _measure(scorer, size)
            log.debug("%d tokens: %.0f tokens/s, %.2f GB", size, rates[size], peak / 1e9)
            if seconds > _SECONDS:
                break
    finally:
        scorer.kept.max_bytes = kept_bytes
    fastest = max(rates.values())
    best = next(size for size, rate in rates.items() if rate >= _NEAR * fastest)
    scorer.max_batch_tokens = best
    log.info("micro-batches of %d tokens: %.0f tokens/s here", best, rates[best])


def _measure(scorer: BatchScorer, size: int) -> tuple[float, float, int]:
    """Tokens a second, seconds and peak bytes of a warm micro-batch of `size` tokens."""
    scorer.max_batch_tokens = size
    before = mx.get_active_memory()
    mx.clear_cache()
    mx.reset_peak_memory()
    times: list[float] = []
    for seed in range(3):
        rows = _rows(scorer, size, seed)
        started = time.perf_counter()
        scorer.score_rows(rows)
        times.append(time.perf_counter() - started)
    seconds = min(times[1:])  # the first builds kernels
    return size / seconds, seconds, mx.get_peak_memory() - before


def _rows(scorer: BatchScorer, size: int, seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    length = min(_ROW, size)
    shape = (size // length, length + 1)
    ids = rng.integers(0, scorer.head.num_embeddings, shape).astype(np.int32)
    return [Row(row, length - 31) for row in ids]
