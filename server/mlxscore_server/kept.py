"""Keys, values and hidden states that later micro-batches and later requests go on from.

A prefix index whose slabs hold arrays. What a window still needs is pinned; the rest is an LRU cache
bounded in bytes. Bytes are counted from shapes. All of it is used on the MLX thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx
from mlxscore_server.prefix_index import PrefixIndex
from mlxscore_server.prefix_path import Path
from mlxscore_server.row import Int64s
from mlxscore_server.slab import Joined, Slab, take_rows
from mlxscore_server.slab_uses import Use

# Over the budget, a slab is rewritten once this share of it is dead, so at most three bytes are copied
# to free one, and that much more than the live part is taken while it happens.
_DEAD_SHARE = 0.25
# Slabs of like size are joined this many at a time, so that a byte is copied a few times in all and a
# path seldom lies in many slabs; never into more than this share of the budget at once.
_JOINED_SLABS = 8
_JOINED_SHARE = 1 / 16
# What is dropped at once where nothing is worth rewriting.
_DROPPED_SHARE = 1 / 32


@dataclass(frozen=True)
class KeptRows:
    """What a micro-batch goes on from."""

    num_rows: int
    """K"""
    layers: list[tuple[mx.array, mx.array]]
    """Each layer's keys and values: (K, kv heads, head dim); no layers where K is 0."""
    indices: list[NDArray[np.int32]]
    """For each path, (depth,): which of the K rows stands at each position."""


class Kept(PrefixIndex):
    """`put` a micro-batch's arrays, `add` what of them is worth keeping, then `shrink`.

    Numbers of slabs and rows hold until the next `shrink`; pinned paths hold for good.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.bytes = 0
        """What the slabs hold, dead rows and pinned ones included."""
        self._slabs: dict[int, Slab] = {}
        self._next_slab = 0

    @property
    def live_bytes(self) -> int:
        """What entries live in."""
        return sum(_live_bytes(self._slabs[slab], use) for slab, use in self.slabs.items())

    @property
    def num_slabs(self) -> int:
        return len(self._slabs)

    def put(self, keys: list[mx.array], values: list[mx.array], hidden: mx.array | None) -> int:
        """Hold on to a micro-batch's arrays; the new slab's number.

        A layer each (n, kv heads, head dim), and (w, dim). They may be lazy: they start to be
        evaluated. Nothing lives in the slab until `add`, and `shrink` frees where nothing lives.
        """
        return self._hold(Slab.holding(keys, values, hidden))

    def rows(self, paths: Sequence[Path]) -> KeptRows:
        """Keys and values of paths, joined; what they share is there once."""
        spans = [path.spans() for path in paths]
        joined = Joined(span for path in spans for span in path)
        layers: list[tuple[mx.array, mx.array]] = []
        if joined.num_rows:
            layers = self._layers(joined)
        return KeptRows(joined.num_rows, layers, [joined.indices(path) for path in spans])

    def hidden(self, places: Sequence[tuple[int, int]] | Int64s) -> mx.array:
        """Hidden states at (slab, hidden row), one place at least, in the given order: (len, dim)."""
        wanted = np.asarray(places, np.int64)
        slabs, slab_of = np.unique(wanted[:, 0], return_inverse=True)
        order = np.argsort(slab_of, kind="stable")
        ends = np.cumsum(np.bincount(slab_of))
        rows = np.split(wanted[order, 1].astype(np.int32), ends[:-1])
        parts = [
            take_rows(_hidden(self._slabs[slab]), to_mlx(part))
            for slab, part in zip(slabs.tolist(), rows, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return take_rows(mx.concatenate(parts), to_mlx(np.argsort(order).astype(np.int32)))

    def shrink(self) -> None:
        """Hold no more than `max_bytes`, but for what is pinned (and up to a third on top of that).

        What was used least recently goes first; where much of a slab is dead, the rest of it moves.
        """
        self._drop(self.live_bytes - self.max_bytes)
        self._free()
        while self.bytes > self.max_bytes:
            dead = {slab: 1 - self._live_share(slab) for slab in self._slabs}
            worst = max(dead, key=dead.__getitem__)
            if dead[worst] >= _DEAD_SHARE:
                self._rewrite([worst])
            elif not self._drop(max(1, int(self.max_bytes * _DROPPED_SHARE))):
                break
            self._free()
        self._join_small()

    def clear(self) -> None:
        """Forget everything, pinned or not."""
        super().clear()
        self._free()

    def _hold(self, slab: Slab) -> int:
        number = self._next_slab
        self._next_slab += 1
        self._slabs[number] = slab
        self.bytes += slab.nbytes
        return number

    def _drop(self, num_bytes: int) -> bool:
        """Drop entries worth so many bytes, if there are; whether any was dropped."""
        dropped = False
        while num_bytes > 0 and (entry := self.drop_oldest()) is not None:
            num_bytes -= entry.num_tokens * self._slabs[entry.slab].row_bytes
            for kept in entry.hidden:
                num_bytes -= len(kept.rows) * self._slabs[kept.slab].hidden_bytes
            dropped = True
        return dropped

    def _free(self) -> None:
        """Let go of slabs in which nothing lives."""
        for number in [number for number in self._slabs if number not in self.slabs]:
            self.bytes -= self._slabs.pop(number).nbytes

    def _live_share(self, number: int) -> float:
        return _live_bytes(self._slabs[number], self.slabs[number]) / self._slabs[number].nbytes

    def _layers(self, joined: Joined) -> list[tuple[mx.array, mx.array]]:
        num_layers = len(next(iter(self._slabs.values())).keys)
        return [
            (
                joined.rows(self._slabs, lambda slab, i=i: slab.keys[i]),
                joined.rows(self._slabs, lambda slab, i=i: slab.values[i]),
            )
            for i in range(num_layers)
        ]

    def _rewrite(self, numbers: list[int]) -> None:
        """Move what lives in some slabs into one new slab."""
        spans, places = self.slabs.move(numbers, self._next_slab)
        if spans:
            layers = self._layers(Joined(spans))
        else:
            slab = self._slabs[numbers[0]]
            layers = [(k[:0], v[:0]) for k, v in zip(slab.keys, slab.values, strict=True)]
        hidden = self.hidden(places) if len(places) else None
        self._hold(Slab.holding([k for k, _ in layers], [v for _, v in layers], hidden))
        self._free()

    def _join_small(self) -> None:
        """Join slabs of like size, the smallest first."""
        tiers: dict[int, list[tuple[int, int]]] = {}
        for number, slab in self._slabs.items():
            # A factor of 8 a tier: eight of one make one of the next.
            tiers.setdefault(slab.nbytes.bit_length() // 3, []).append((slab.nbytes, number))
        for tier in tiers.values():
            tier.sort()
            for i in range(0, len(tier) - _JOINED_SLABS + 1, _JOINED_SLABS):
                group = tier[i : i + _JOINED_SLABS]
                if sum(size for size, _ in group) <= self.max_bytes * _JOINED_SHARE:
                    self._rewrite([number for _, number in group])


def _live_bytes(slab: Slab, use: Use) -> int:
    return use.rows * slab.row_bytes + use.hidden * slab.hidden_bytes


def _hidden(slab: Slab) -> mx.array:
    assert slab.hidden is not None, "this is a bug: the slab keeps no hidden states"
    return slab.hidden
