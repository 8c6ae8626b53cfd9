"""Rows of many shapes: memory ends where it began, over ten repeats."""

import gc
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from tiny_models import VOCAB, build
from ways import LEFT_PADDED, Way

from mlxscore_server.device import current
from mlxscore_server.row import Row, RowScore
from mlxscore_server.scoring import BatchScorer

REPEATS, ROWS = 10, 200
SLACK = 5 * 2**14
"""Bytes that the arrays of a slab may keep alive beside their own: MLX does not copy for less."""


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """What only that would free, a device may run out of memory with."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def mixed_rows(seed: int) -> list[Row]:
    """Long and short, alone and with one of a few beginnings in common."""
    rng = np.random.default_rng(seed)
    beginnings = [rng.integers(0, VOCAB, n) for n in (0, 5, 24, 60)]
    rows: list[Row] = []
    for _ in range(ROWS):
        beginning = beginnings[rng.integers(len(beginnings))]
        end = rng.integers(0, VOCAB, rng.integers(2, 30))
        ids = np.concatenate([beginning, end]).astype(np.int32)
        rows.append(Row(ids, int(rng.integers(1, len(ids))), top_logprobs=int(rng.integers(0, 3))))
    return rows


@pytest.mark.parametrize(
    "way",
    [LEFT_PADDED, Way(kept_bytes=200_000), Way(max_batch_tokens=32, kept_bytes=50_000)],
    ids=["left-padded", "packed", "chained"],
)
def test_memory_ends_where_it_began(way: Way) -> None:
    scorer = BatchScorer(build("llama"), current())
    way.set(scorer)
    before = mx.get_active_memory()
    for seed in range(REPEATS):
        answers = scorer.score_rows(mixed_rows(seed))
        assert all(isinstance(answer, RowScore) for answer in answers)
        mx.synchronize()  # what is kept may still be being written
        assert scorer.kept.bytes <= way.kept_bytes
        most = scorer.kept.bytes + scorer.kept.num_slabs * SLACK
        assert mx.get_active_memory() - before <= most
        scorer.kept.clear()
        assert mx.get_active_memory() <= before  # less, where something older goes meanwhile
