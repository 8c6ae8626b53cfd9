"""Micro-batches: every node exactly once and in order, the budget kept, little padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_server.plan import MicroBatch, cut_packed, cut_padded
from mlxscore_server.row import Row
from mlxscore_server.tree import Tree, grow

ids = st.lists(st.integers(0, 5), min_size=2, max_size=40)
rows_of = st.lists(
    ids.flatmap(lambda t: st.integers(1, len(t) - 1).map(lambda s: Row(np.array(t, np.int32), s))),
    max_size=60,
)


def flat(rows: list[Row]) -> Tree:
    return grow(rows, node_cost=1, longest=2**31, share=False)


def assert_all_nodes(tree: Tree, batches: list[MicroBatch]) -> None:
    assert [n for batch in batches for n in range(batch.first, batch.last)] == list(
        range(len(tree.starts))
    )


@given(rows=rows_of, budget=st.integers(1, 200), cost=st.integers(1, 20))
def test_packed_batches_hold_every_node_and_keep_the_budget(
    rows: list[Row], budget: int, cost: int
) -> None:
    tree = grow(rows, node_cost=cost, longest=budget)
    batches = cut_packed(tree, budget)
    assert_all_nodes(tree, batches)
    sizes = [int(tree.offsets[b.last] - tree.offsets[b.first]) for b in batches]
    assert all(0 < size <= budget for size in sizes)
    assert all(batch.length is None for batch in batches)


@given(rows=rows_of, budget=st.integers(41, 200))
def test_packed_batches_are_few_and_of_like_size(rows: list[Row], budget: int) -> None:
    """No two neighbours would fit into one, but for what evening them out moves."""
    tree = grow(rows, node_cost=1, longest=budget)
    batches = cut_packed(tree, budget)
    total, longest = int(tree.offsets[-1]), int(np.diff(tree.offsets).max(initial=0))
    assert len(batches) <= -(-total // max(1, budget - longest + 1))
    for batch in batches:
        size = int(tree.offsets[batch.last] - tree.offsets[batch.first])
        assert size <= total / -(-total // budget) + longest


@given(
    rows=rows_of,
    budget=st.integers(1, 200),
    overhead=st.integers(0, 300),
    pad=st.booleans(),
    multiple=st.integers(1, 16),
)
def test_padded_batches_hold_every_node_and_keep_the_budget(
    rows: list[Row], budget: int, overhead: int, pad: bool, multiple: int
) -> None:
    tree = flat(rows)
    batches = cut_padded(
        tree,
        max_batch_tokens=budget,
        batch_overhead=overhead,
        pad=pad,
        length_multiple=multiple,
    )
    assert_all_nodes(tree, batches)
    lengths = np.diff(tree.offsets)
    for batch in batches:
        assert batch.length is not None
        assert (batch.last - batch.first) * batch.length <= budget or batch.last - batch.first == 1
        here = lengths[batch.first : batch.last]
        assert (here <= batch.length).all()
        if not pad:
            assert set(here.tolist()) == {batch.length}


@given(rows=rows_of, budget=st.integers(1, 200))
def test_padding_is_never_dearer_than_more_micro_batches(rows: list[Row], budget: int) -> None:
    """With a price on micro-batches, no plan costs more than the one without any padding."""
    tree = flat(rows)

    def cost(batches: list[MicroBatch]) -> int:
        return sum((b.last - b.first) * (b.length or 0) + 10 for b in batches)

    padded = cut_padded(tree, max_batch_tokens=budget, batch_overhead=10)
    exact = cut_padded(tree, max_batch_tokens=budget, batch_overhead=10, pad=False)
    assert cost(padded) <= cost(exact)
