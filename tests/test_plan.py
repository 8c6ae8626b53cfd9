"""The planner: every row exactly once, the budget kept, equal inputs once, little padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_server.plan import MicroBatch, plan
from mlxscore_server.row import Row

ids = st.lists(st.integers(0, 5), min_size=2, max_size=40)
rows_of = st.lists(
    ids.flatmap(lambda t: st.integers(1, len(t) - 1).map(lambda s: Row(np.array(t, np.int32), s))),
    max_size=60,
)


def inputs_of(batches: list[MicroBatch]) -> list[bytes]:
    return [slot.key for batch in batches for slot in batch.inputs]


@given(
    rows=rows_of,
    budget=st.integers(1, 200),
    overhead=st.integers(0, 300),
    pad=st.booleans(),
    multiple=st.integers(1, 16),
)
def test_every_row_once_and_the_budget_kept(
    rows: list[Row], budget: int, overhead: int, pad: bool, multiple: int
) -> None:
    batches = plan(
        rows,
        max_batch_tokens=budget,
        batch_overhead=overhead,
        pad=pad,
        length_multiple=multiple,
    )
    planned = [row for batch in batches for row in batch.rows]
    assert sorted(map(id, planned)) == sorted(map(id, rows))
    assert sorted(inputs_of(batches)) == sorted({row.key for row in rows})
    for batch in batches:
        assert batch.padded_tokens <= budget or len(batch.inputs) == 1
        assert all(slot.num_inputs <= batch.length for slot in batch.inputs)
        for row, slot in zip(batch.rows, batch.slots, strict=True):
            assert batch.inputs[slot].key == row.key
        if not pad:
            assert {slot.num_inputs for slot in batch.inputs} == {batch.length}
        assert sum(batch.computed_by_row()) == batch.computed_tokens


@given(rows=rows_of, budget=st.integers(1, 200))
def test_padding_is_never_dearer_than_more_micro_batches(rows: list[Row], budget: int) -> None:
    """With a price on micro-batches, no plan costs more than the one without any padding."""

    def cost(batches: list[MicroBatch]) -> int:
        return sum(batch.padded_tokens + 10 for batch in batches)

    padded = plan(rows, max_batch_tokens=budget, batch_overhead=10)
    exact = plan(rows, max_batch_tokens=budget, batch_overhead=10, pad=False)
    assert cost(padded) <= cost(exact)


def test_four_one_letter_choices_are_one_slot_with_four_targets() -> None:
    question = [7, 8, 9]
    rows = [Row(np.array([*question, choice], np.int32), 3) for choice in range(4)]
    (batch,) = plan(rows, max_batch_tokens=100, batch_overhead=0)
    assert len(batch.inputs) == 1
    assert batch.computed_tokens == 3
    assert batch.computed_by_row() == [3, 0, 0, 0]


def test_shortest_first_and_alike_together() -> None:
    lengths = [30, 3, 29, 4, 30]
    rows = [Row(np.arange(n, dtype=np.int32) + i, 1) for i, n in enumerate(lengths)]
    batches = plan(rows, max_batch_tokens=1000, batch_overhead=5)
    assert [batch.length for batch in batches] == [3, 29]
    assert [len(batch.inputs) for batch in batches] == [2, 3]


def test_one_length_is_not_rounded_up() -> None:
    rows = [Row(np.arange(n, dtype=np.int32), 1) for n in (12, 12, 20)]
    assert [
        b.length for b in plan(rows[:2], max_batch_tokens=64, batch_overhead=0, length_multiple=16)
    ] == [11]
    assert [
        b.length for b in plan(rows, max_batch_tokens=999, batch_overhead=999, length_multiple=16)
    ] == [32]


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    rows = [Row(np.arange(50, dtype=np.int32), 1), Row(np.arange(5, dtype=np.int32), 1)]
    batches = plan(rows, max_batch_tokens=10, batch_overhead=0)
    assert [len(b.rows) for b in batches] == [1, 1]


def test_nothing_to_plan() -> None:
    assert plan([], max_batch_tokens=10, batch_overhead=0) == []
