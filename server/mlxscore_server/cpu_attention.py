"""Attention on MLX's CPU back end through numpy on the shared memory, on all cores.

MLX computes exponentials there one at a time (20 ns) and attention on one core.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import cast
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from mlxscore_server.arrays import new_array, view_numpy
from mlxscore_server.block_attention import DeviceBlocks, attend_mlx
from mlxscore_server.blocks import Blocks
from mlxscore_server.cpu_softmax import Floats, Workspace
from mlxscore_server.cpu_threads import num_threads, spread
from mlxscore_server.cpu_tiles import Int32s, Runs, Tile, tiles

_Key = tuple[int | None, int, int]
_tiles: WeakKeyDictionary[Blocks, dict[_Key, list[Tile]]] = WeakKeyDictionary()
"""A micro-batch's blocks are cut once for all its layers that are alike."""


def attend_numpy(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    blocks: DeviceBlocks,
    *,
    scale: float,
    window: int | None,
    sinks: mx.array | None,
) -> mx.array:
    """`BlockAttention` in numpy; what is not float32 goes to MLX."""
    arrays = [queries, keys, values, *([] if sinks is None else [sinks])]
    if any(array.dtype != mx.float32 for array in arrays):
        return attend_mlx(queries, keys, values, blocks, scale=scale, window=window, sinks=sinks)
    mx.eval(arrays)
    q, k, v, *rest = (view_numpy(array) for array in arrays)
    num_tokens, heads, key_heads = q.shape[0], q.shape[1], k.shape[1]
    result, answers = new_array((num_tokens, heads, 1, v.shape[3]))
    Job(
        _by_key_head(q[:, :, 0], key_heads),
        k[:, :, 0],
        v[:, :, 0],
        _by_key_head(answers[:, :, 0], key_heads),
        scale,
        rest[0].reshape(key_heads, -1) if rest else None,
    ).run(_tiles_of(blocks, window, heads // key_heads, key_heads))
    return result


def _tiles_of(blocks: Blocks, window: int | None, heads: int, key_heads: int) -> Sequence[Tile]:
    cut = _tiles.setdefault(blocks, {})
    key = window, heads, key_heads
    if key not in cut:
        # Several for each thread, so that one that is kept from running does not hold up all.
        cut[key] = tiles(blocks, window, heads, parts=-(-4 * num_threads() // key_heads))
    return cut[key]


def _by_key_head(rows: Floats, key_heads: int) -> Floats:
    """(N, H, D) as (N, Hkv, G, D): a view."""
    return rows.reshape(rows.shape[0], key_heads, -1, rows.shape[2])


class Job:
    """Tiles of a layer: (T, Hkv, G, D) queries, (N, Hkv, D) keys, (N, Hkv, Dv) values, (T, Hkv, G, Dv)
    answers to write, (Hkv, G) sinks."""

    def __init__(
        self,
        queries: Floats,
        keys: Floats,
        values: Floats,
        answers: Floats,
        scale: float,
        sinks: Floats | None,
    ) -> None:
        self._queries, self._keys, self._values = queries, keys, values
        self._answers, self._scale, self._sinks = answers, scale, sinks
        self._key_rows = self._value_rows = np.empty((0, 0), np.float32)

    def run(self, cut: Sequence[Tile]) -> None:
        """Write the answers to all of the tiles' queries."""
        if any(isinstance(tile.keys, np.ndarray) for tile in cut):
            # To gather from: one row a key head (a copy only where these are not so already).
            self._key_rows = self._keys.reshape(-1, self._keys.shape[-1])
            self._value_rows = self._values.reshape(-1, self._values.shape[-1])
        heads = self._queries.shape[2]
        self._most_scores = max(tile.num_scores for tile in cut) * heads
        self._most_keys = max(tile.shape[2] for tile in cut)
        spread(self._work, list(product(cut, range(self._keys.shape[1]))))

    def _work(self, parts: Iterator[tuple[Tile, int]]) -> None:
        workspace = Workspace(self._most_scores, self._most_keys)
        for tile, head in parts:
            answers = workspace.attend(
                _taken(self._queries[:, head], tile.queries, tile.shape[:2]),
                self._gathered(self._keys, self._key_rows, tile, head),
                self._gathered(self._values, self._value_rows, tile, head),
                self._scale,
                tile.mask,
                None if self._sinks is None else self._sinks[head],
            )
            _put(self._answers[:, head], tile, answers)

    def _gathered(self, rows: Floats, of_heads: Floats, tile: Tile, head: int) -> Floats:
        if isinstance(tile.keys, Runs):
            return tile.keys.of(rows[:, head], (tile.shape[0], tile.shape[2]))
        # Indices are in range; "clip" spares numpy a check that copies.
        wanted = tile.keys * self._keys.shape[1] + head
        return np.take(of_heads, cast(Int32s, wanted), axis=0, mode="clip")


def _taken(rows: Floats, which: Runs | Int32s, shape: tuple[int, int]) -> Floats:
    return which.of(rows, shape) if isinstance(which, Runs) else rows[which]


def _put(rows: Floats, tile: Tile, answers: Floats) -> None:
    if isinstance(tile.answered, Runs):
        tile.answered.of(rows, tile.shape[:2])[...] = answers
    else:
        wanted = tile.answered >= 0
        rows[tile.answered[wanted]] = answers[wanted]
