"""Rows in, micro-batches out: what is computed together, and what only once. Knows no MLX, no time.

This is the seam between the queue and the scorer: a planner that shares prefixes gives the same
`MicroBatch`es another shape and nothing above or below it changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from mlxscore_server.row import Row


@dataclass(frozen=True)
class MicroBatch:
    """Rows that run in one forward pass.

    Rows with equal inputs share a slot: four one-letter answers to one question are one slot with
    four targets.
    """

    rows: tuple[Row, ...]
    slots: tuple[int, ...]
    """For each row, the slot (line of the padded batch) that computes it."""
    inputs: tuple[Row, ...]
    """For each slot, a row that has its input."""
    length: int
    """Tokens in each slot after padding."""

    @property
    def padded_tokens(self) -> int:
        return len(self.inputs) * self.length

    @property
    def computed_tokens(self) -> int:
        """Tokens of the slots, without the padding."""
        return sum(row.num_inputs for row in self.inputs)

    def computed_by_row(self) -> list[int]:
        """`computed_tokens` shared out: the first row of each slot pays for it, the others nothing."""
        paid: set[int] = set()
        shares: list[int] = []
        for row, slot in zip(self.rows, self.slots, strict=True):
            shares.append(0 if slot in paid else row.num_inputs)
            paid.add(slot)
        return shares

    @staticmethod
    def of(rows: Iterable[Row], length: int | None = None) -> "MicroBatch":
        """Pack rows as they are; `length` pads beyond the longest of them."""
        slot_of: dict[bytes, int] = {}
        all_rows: list[Row] = []
        slots: list[int] = []
        inputs: list[Row] = []
        for row in rows:
            slot = slot_of.setdefault(row.key, len(inputs))
            if slot == len(inputs):
                inputs.append(row)
            all_rows.append(row)
            slots.append(slot)
        longest = max((row.num_inputs for row in inputs), default=0)
        return MicroBatch(tuple(all_rows), tuple(slots), tuple(inputs), max(longest, length or 0))


def plan(
    rows: Sequence[Row],
    *,
    max_batch_tokens: int,
    batch_overhead: int,
    pad: bool = True,
    length_multiple: int = 1,
) -> list[MicroBatch]:
    """Cut rows into micro-batches of at most `max_batch_tokens` padded tokens, shortest first.

    A row longer than the budget runs alone. Among all ways to cut the rows, sorted by length, the
    one with the least cost is taken: padded tokens plus `batch_overhead` tokens a micro-batch (what
    starting one costs on this device). Without `pad` only rows of equal length meet. Where there is
    padding anyway, lengths are rounded up to `length_multiple`, so that few shapes occur.
    """
    by_input: dict[bytes, list[Row]] = {}
    for row in rows:
        by_input.setdefault(row.key, []).append(row)
    groups = sorted(by_input.values(), key=lambda group: group[0].num_inputs)
    if not groups:
        return []
    lengths = np.array([group[0].num_inputs for group in groups])
    distinct, counts = np.unique(lengths, return_counts=True)
    ends = np.cumsum(counts)
    batches: list[MicroBatch] = []
    for first, last in _bands(
        distinct, counts, max_batch_tokens, batch_overhead, pad, length_multiple
    ):
        length = int(distinct[last])
        if first < last:
            length = _round_up(length, length_multiple)
        band = groups[int(ends[first] - counts[first]) : int(ends[last])]
        cap = max(1, max_batch_tokens // length)
        # As many micro-batches as the budget asks for, of nearly equal size.
        num_batches = -(-len(band) // cap)
        edges = [len(band) * i // num_batches for i in range(num_batches + 1)]
        for start, stop in pairwise(edges):
            batches.append(MicroBatch.of(chain.from_iterable(band[start:stop]), length))
    return batches


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _bands(
    lengths: NDArray[np.int64],
    counts: NDArray[np.int64],
    max_batch_tokens: int,
    batch_overhead: int,
    pad: bool,
    length_multiple: int,
) -> list[tuple[int, int]]:
    """Bands of distinct lengths [first, last] that are padded to one length, of least total cost."""
    if not pad:
        return [(i, i) for i in range(len(lengths))]
    # best[i]: the least cost of the i shortest lengths; choice[i]: where their last band begins.
    total = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(len(lengths) + 1)
    choice = np.zeros(len(lengths) + 1, dtype=np.int64)
    rounded = -(-lengths // length_multiple) * length_multiple
    for i in range(1, len(lengths) + 1):
        rows = total[i] - total[:i]
        length = np.full(i, rounded[i - 1])
        length[i - 1] = lengths[i - 1]  # a band of one length has no padding to round
        num_batches = -(-rows // np.maximum(1, max_batch_tokens // length))
        cost = best[:i] + rows * length + num_batches * batch_overhead
        choice[i] = int(np.argmin(cost))
        best[i] = cost[choice[i]]
    bands: list[tuple[int, int]] = []
    i = len(lengths)
    while i > 0:
        first = int(choice[i])
        bands.append((first, i - 1))
        i = first
    return bands[::-1]
