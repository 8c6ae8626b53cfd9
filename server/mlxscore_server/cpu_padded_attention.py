"""MLX's attention function for batches of rows, as left-padded ones are, through numpy on a CPU."""

from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import new_array, view_numpy
from mlxscore_server.cpu_attention import Job
from mlxscore_server.cpu_softmax import Floats
from mlxscore_server.cpu_threads import num_threads
from mlxscore_server.cpu_tiles import HIDDEN, Runs, Tile, additive, tile_shape

_NOT_SEEN = HIDDEN / 10
"""Masks' values up to this hide a key for good."""


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None,
) -> mx.array | None:
    """(B, H, L, D) queries, (B, Hkv, S, D) keys and values, float32: as MLX's own. None for a mask
    that differs from head to head."""
    batch, heads, length, _ = queries.shape
    key_heads, num_keys = keys.shape[1], keys.shape[2]
    shape = batch, length, num_keys, heads // key_heads, key_heads
    if isinstance(mask, mx.array):
        if mask.ndim > 4 or (mask.ndim >= 3 and mask.shape[-3] != 1):
            return None
        cut = _masked.tiles(view_numpy(mask), shape)
    else:
        cut = _unmasked(*shape, causal=mask is not None)
    result, answers = new_array((batch, length, heads, values.shape[3]))
    Job(
        _rows(queries).reshape(batch * length, key_heads, heads // key_heads, -1),
        _rows(keys),
        _rows(values),
        answers.reshape(batch * length, key_heads, heads // key_heads, -1),
        scale,
        None if sinks is None else view_numpy(sinks).reshape(key_heads, -1),
    ).run(cut)
    return result.swapaxes(1, 2)


def _rows(array: mx.array) -> Floats:
    """(B, h, n, D) as (B * n, h, D): a view where it comes from (B, n, h, D)."""
    rows = view_numpy(array).swapaxes(1, 2)
    return rows.reshape(-1, *rows.shape[2:])


_Shape = tuple[int, int, int, int, int]
"""B, L, S, G, Hkv"""


def _pieces(shape: _Shape) -> list[tuple[slice, slice]]:
    """Rows and queries of the batch that make a tile."""
    batch, length, num_keys, heads, key_heads = shape
    parts = -(-4 * num_threads() // key_heads)
    rows, queries = tile_shape(batch, length, num_keys, heads, parts)
    return [
        (slice(row, min(row + rows, batch)), slice(query, min(query + queries, length)))
        for row in range(0, batch, rows)
        for query in range(0, length, queries)
    ]


def _tile(shape: _Shape, rows: slice, queries: slice, keys: slice, mask: Floats | None) -> Tile:
    _, length, num_keys, _, _ = shape
    asked = Runs(rows.start * length + queries.start, length)
    return Tile(
        shape=(rows.stop - rows.start, queries.stop - queries.start, keys.stop - keys.start),
        queries=asked,
        answered=asked,
        keys=Runs(rows.start * num_keys + keys.start, num_keys),
        mask=mask,
    )


@lru_cache(maxsize=8)
def _unmasked(
    batch: int, length: int, num_keys: int, heads: int, key_heads: int, *, causal: bool
) -> list[Tile]:
    """Tiles without a mask, or aligned at the lower right: the last query sees the last key."""
    shape = batch, length, num_keys, heads, key_heads
    found: list[Tile] = []
    for rows, queries in _pieces(shape):
        stop, mask = num_keys, None
        if causal:
            stop = num_keys - length + int(queries.stop)
            seen = np.arange(num_keys - length + int(queries.start), stop)
            mask = additive(np.arange(stop) > seen[:, None])
        found.append(_tile(shape, rows, queries, slice(0, stop), mask))
    return found


class _Masked:
    """Tiles for a mask that comes as an array: made once for all layers that use the same."""

    def __init__(self) -> None:
        self._mask: NDArray[Any] = np.empty(0)
        self._shape: _Shape | None = None
        self._tiles: list[Tile] = []

    def tiles(self, mask: NDArray[Any], shape: _Shape) -> list[Tile]:
        same = self._shape == shape and self._mask.dtype == mask.dtype
        if not same or not np.array_equal(self._mask, mask):
            self._mask, self._shape, self._tiles = mask.copy(), shape, _cut(mask, shape)
        return self._tiles


_masked = _Masked()


def _cut(mask: NDArray[Any], shape: _Shape) -> list[Tile]:
    batch, length, num_keys, _, _ = shape
    if mask.dtype == np.bool_:
        mask = np.where(mask, np.float32(0), HIDDEN)
    whole = np.broadcast_to(mask, (batch, 1, length, num_keys))
    found: list[Tile] = []
    for rows, queries in _pieces(shape):
        part = whole[rows, :, queries]
        seen = np.flatnonzero((part > _NOT_SEEN).any(axis=(0, 1, 2)))
        keys = slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, num_keys)
        part = part[..., keys]
        changed = np.flatnonzero((part != 0).any(axis=(0, 1, 2)))
        used = np.ascontiguousarray(part[..., changed[0] :]) if len(changed) else None
        found.append(_tile(shape, rows, queries, keys, used))
    return found
