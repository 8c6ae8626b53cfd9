"""Rotary positions of float32 arrays in numpy, on all cores, with tables that all layers share."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import new_array, to_mlx, to_numpy, view_numpy
from mlxscore_server.cpu_threads import spread

Floats = NDArray[np.float32]

# Elements that a thread works on at once.
_CHUNK = 2**15

_rope: Callable[..., mx.array] = mx.fast.rope


def rope(
    x: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None,
) -> mx.array:
    """(B, H, T, D) with its first `dims` rotated, as MLX's function of the same arguments."""
    batch, heads, length, size = x.shape
    starts = offset if isinstance(offset, int) else to_numpy(offset).astype(np.int32).tobytes()
    cos, sin = _tables(
        starts, length, dims, traditional, base, scale, None if freqs is None else _bytes(freqs)
    )
    # In memory as it most often comes and goes on: (B, T, H, D).
    result, out = new_array((batch, length, heads, size))
    out = out.reshape(batch * length, heads, size)
    rows = view_numpy(x).swapaxes(1, 2).reshape(batch * length, heads, size)
    if len(cos) < batch * length:
        cos, sin = np.tile(cos, (batch, 1, 1, 1)), np.tile(sin, (batch, 1, 1, 1))
    pairs = (dims // 2, 2) if traditional else (2, dims // 2)
    members = [
        (..., slice(i, i + 1)) if traditional else (..., slice(i, i + 1), slice(None))
        for i in (0, 1)
    ]
    step = max(1, _CHUNK // (heads * size))

    def work(starts: Iterator[int]) -> None:
        spare = np.empty((step, heads, *pairs), np.float32)
        for start in starts:
            here = slice(start, start + step)
            old, new = rows[here], out[here]
            pair = old[..., :dims].reshape(*old.shape[:2], *pairs)
            part, rotated = spare[: len(old)], new[..., :dims].reshape(*old.shape[:2], *pairs)
            for i, j in ((0, 1), (1, 0)):
                np.multiply(pair[members[j]], sin[here][members[i]], out=part[members[i]])
            np.multiply(pair, cos[here], out=rotated)
            np.add(rotated, part, out=rotated)
            new[..., dims:] = old[..., dims:]

    spread(work, range(0, len(out), step))
    return result.swapaxes(1, 2)


def _bytes(array: mx.array) -> bytes:
    return to_numpy(array).astype(np.float32).tobytes()


# One or two in use while a micro-batch runs.
@lru_cache(maxsize=4)
def _tables(
    offset: int | bytes,
    length: int,
    dims: int,
    traditional: bool,
    base: float | None,
    scale: float,
    freqs: bytes | None,
) -> tuple[Floats, Floats]:
    """What each of the pairs' members is multiplied with, and its partner: each (B * T, 1, ...pairs).

    Read off what MLX makes of unit vectors, so that the numbers are its own.
    """
    starts = np.array([offset]) if isinstance(offset, int) else np.frombuffer(offset, np.int32)
    units = np.zeros((len(starts), 1, length, dims), np.float32)
    units[..., slice(0, None, 2) if traditional else slice(0, dims // 2)] = 1
    turned = _rope(
        to_mlx(units),
        dims,
        traditional=traditional,
        base=base,
        scale=scale,
        offset=offset if isinstance(offset, int) else to_mlx(starts),
        freqs=None if freqs is None else to_mlx(np.frombuffer(freqs, np.float32)),
    )
    table = to_numpy(turned).reshape(len(starts) * length, 1, -1)
    if traditional:
        cos, sin, axis = table[..., 0::2], table[..., 1::2], -1
    else:
        cos, sin, axis = table[..., : dims // 2], table[..., dims // 2 :], -2
    return np.stack([cos, cos], axis), np.stack([-sin, sin], axis)
