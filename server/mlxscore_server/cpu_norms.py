"""Norms over the last axis of float32 arrays in numpy, on all cores."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import new_array, view_numpy
from mlxscore_server.cpu_threads import spread

Floats = NDArray[np.float32]

# Elements that a thread works on at once.
_CHUNK = 2**15


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight"""
    scale = None if weight is None else view_numpy(weight)

    def norm(rows: Floats, out: Floats) -> None:
        np.multiply(rows, _inverse(rows, eps), out=out)
        if scale is not None:
            np.multiply(out, scale, out=out)

    return _by_rows(norm, x)


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias"""
    scale = None if weight is None else view_numpy(weight)
    shift = None if bias is None else view_numpy(bias)

    def norm(rows: Floats, out: Floats) -> None:
        np.subtract(rows, rows.mean(axis=1, keepdims=True), out=out)
        np.multiply(out, _inverse(out, eps), out=out)
        if scale is not None:
            np.multiply(out, scale, out=out)
        if shift is not None:
            np.add(out, shift, out=out)

    return _by_rows(norm, x)


def _inverse(rows: Floats, eps: float) -> Floats:
    squares = np.vecdot(rows, rows)
    return (1 / np.sqrt(squares / rows.shape[1] + np.float32(eps)))[:, None]


def _by_rows(norm: Callable[[Floats, Floats], None], x: mx.array) -> mx.array:
    result, out = new_array(x.shape)
    width = x.shape[-1]
    rows, out = view_numpy(x).reshape(-1, width), out.reshape(-1, width)
    step = max(1, _CHUNK // width)

    def work(starts: Iterator[int]) -> None:
        for start in starts:
            norm(rows[start : start + step], out[start : start + step])

    spread(work, range(0, len(out), step))
    return result
