"""What a micro-batch leaves behind: each layer's keys and values, and hidden states, as rows."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx
from mlxscore_server.block_attention import take
from mlxscore_server.prefix_path import Span

Rows = slice | mx.array
"""A range of a slab's rows, or an int32 array of their numbers."""

# A range costs nothing to take but one copy a layer to join; a gather moves each row once more.
_MOST_RANGES = 8


@dataclass(frozen=True, eq=False)
class Slab:
    """Arrays of one micro-batch, or of several joined."""

    keys: list[mx.array]
    """A layer each: (n, kv heads, head dim); layers may differ in all but n."""
    values: list[mx.array]
    hidden: mx.array | None
    """(w, dim)"""

    @cached_property
    def row_bytes(self) -> int:
        """Of a token's keys and values in all layers."""
        return sum(_row_bytes(array) for array in chain(self.keys, self.values))

    @cached_property
    def hidden_bytes(self) -> int:
        """Of one hidden state."""
        return 0 if self.hidden is None else _row_bytes(self.hidden)

    @cached_property
    def nbytes(self) -> int:
        hidden = 0 if self.hidden is None else self.hidden.shape[0]
        return self.keys[0].shape[0] * self.row_bytes + hidden * self.hidden_bytes

    @staticmethod
    def holding(keys: list[mx.array], values: list[mx.array], hidden: mx.array | None) -> "Slab":
        """A slab of arrays that may be lazy: their evaluation is started.

        None of them is copied unless it is a part of a larger buffer, which it would keep alive.
        """
        slab = Slab(
            [mx.contiguous(array) for array in keys],
            [mx.contiguous(array) for array in values],
            None if hidden is None else mx.contiguous(hidden),
        )
        mx.async_eval(slab.keys, slab.values, [] if slab.hidden is None else slab.hidden)
        return slab


class Joined:
    """Spans of slabs, joined: slab after slab, each row once, in ascending order within a slab."""

    def __init__(self, spans: Iterable[Span]) -> None:
        by_slab: dict[int, list[tuple[int, int]]] = {}
        for slab, row, count in dict.fromkeys(spans):
            by_slab.setdefault(slab, []).append((row, row + count))
        self.num_rows = 0
        self._pieces: list[tuple[int, list[Rows]]] = []
        self._ranges: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for slab, ranges in by_slab.items():
            starts, stops = _merged(np.array(ranges, np.int64))
            counts = stops - starts
            joined = self.num_rows + np.cumsum(counts) - counts
            self._ranges[slab] = starts, joined - starts
            self.num_rows += int(counts.sum())
            if len(starts) <= _MOST_RANGES:
                pairs = zip(starts.tolist(), stops.tolist(), strict=True)
                self._pieces.append((slab, [slice(i, j) for i, j in pairs]))
            else:
                rows = np.repeat(starts - np.cumsum(counts) + counts, counts)
                rows += np.arange(len(rows))
                self._pieces.append((slab, [to_mlx(rows.astype(np.int32))]))

    def indices(self, spans: list[Span]) -> NDArray[np.int32]:
        """Where the rows of some of the spans stand among the joined."""
        parts = [np.zeros(0, np.int64)]
        for slab, row, count in spans:
            starts, shifts = self._ranges[slab]
            first = row + int(shifts[np.searchsorted(starts, row, side="right") - 1])
            parts.append(np.arange(first, first + count))
        return np.concatenate(parts).astype(np.int32)

    def rows(self, slabs: Mapping[int, Slab], array_of: Callable[[Slab], mx.array]) -> mx.array:
        """The joined rows of one array of each slab: (num_rows, ...)."""
        parts = [
            take_rows(array_of(slabs[slab]), rows)
            for slab, pieces in self._pieces
            for rows in pieces
        ]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def take_rows(array: mx.array, rows: Rows) -> mx.array:
    """Rows of an array, (n, ...)."""
    if isinstance(rows, slice):
        return array if rows == slice(0, array.shape[0]) else array[rows]
    return take(array, rows)


def _row_bytes(array: mx.array) -> int:
    return prod(array.shape[1:]) * array.dtype.size


def _merged(ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n, 2) ranges to the ascending starts and stops of their union, none touching the next."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.append(True, ranges[1:, 0] > reach[:-1])
    return ranges[first, 0], reach[np.append(first[1:], True)]
