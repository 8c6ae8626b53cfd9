"""Activation functions of float32 arrays in numpy, on all cores.

MLX computes exponentials one at a time on a CPU: a sigmoid takes 24 ns, a gelu 51, in numpy 2 to 4.
"""

import math
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import new_array, view_numpy
from mlxscore_server.cpu_threads import spread

Floats = NDArray[np.float32]
Activation = Callable[[Floats, Floats, Floats], None]
"""Writes what becomes of the first to the second; the third is memory to use."""

# Elements that a thread works on at once: several arrays of 128 KiB stay near the core.
_CHUNK = 2**15


def silu(x: Floats, out: Floats, spare: Floats) -> None:
    """x / (1 + exp(-x))"""
    np.negative(x, out=spare)
    _expd(spare)
    np.add(spare, 1, out=spare)
    np.divide(x, spare, out=out)


def gelu_approx(x: Floats, out: Floats, spare: Floats) -> None:
    """x / 2 (1 + tanh(s)) = x / (1 + exp(-2 s)), s = sqrt(2 / pi) (x + 0.044715 x^3)"""
    factor = -2 * math.sqrt(2 / math.pi)
    np.multiply(x, x, out=spare)
    np.multiply(spare, factor * 0.044715, out=spare)
    np.add(spare, factor, out=spare)
    np.multiply(spare, x, out=spare)
    _expd(spare)
    np.add(spare, 1, out=spare)
    np.divide(x, spare, out=out)


def gelu_fast_approx(x: Floats, out: Floats, spare: Floats) -> None:
    """x / (1 + exp(-1.702 x))"""
    np.multiply(x, -1.702, out=spare)
    _expd(spare)
    np.add(spare, 1, out=spare)
    np.divide(x, spare, out=out)


# Abramowitz and Stegun 7.1.26: erf within 1.5e-7.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_STEP = 0.3275911


def gelu(x: Floats, out: Floats, spare: Floats) -> None:
    """x / 2 (1 + erf(x / sqrt 2)) = max(x, 0) - |x| / 2 (1 - erf(|x| / sqrt 2))"""
    size = np.abs(x)
    np.multiply(size, _ERF_STEP / math.sqrt(2), out=spare)
    np.add(spare, 1, out=spare)
    np.reciprocal(spare, out=spare)
    tail = np.multiply(spare, _ERF[0])
    for factor in _ERF[1:]:
        np.add(tail, factor, out=tail)
        np.multiply(tail, spare, out=tail)
    np.multiply(x, x, out=spare)
    np.multiply(spare, -0.5, out=spare)
    np.exp(spare, out=spare)
    np.multiply(tail, spare, out=tail)
    np.multiply(tail, size, out=tail)
    np.multiply(tail, 0.5, out=tail)
    np.maximum(x, 0, out=out)
    np.subtract(out, tail, out=out)


def _expd(x: Floats) -> None:
    # Beyond it infinity, which numpy warns of; the quotient is 0 to float32 here as well.
    np.minimum(x, 88, out=x)
    np.exp(x, out=x)


def activate(function: Activation, x: mx.array, factor: mx.array | None = None) -> mx.array:
    """`function(x)`, times `factor` of the same shape."""
    result, out = new_array(x.shape)
    ins = [view_numpy(x)] if factor is None else [view_numpy(x), view_numpy(factor)]
    width = x.shape[-1]
    out = out.reshape(-1, width)
    # Halves of a wider array (phi3) are views; only what has no rows of equal distance is copied.
    rows = [array.reshape(-1, width) for array in ins]
    step = max(1, _CHUNK // width)

    def work(starts: Iterator[int]) -> None:
        spare = np.empty((step, width), np.float32)
        for start in starts:
            here = slice(start, start + step)
            function(rows[0][here], out[here], spare[: len(out[here])])
            if factor is not None:
                np.multiply(out[here], rows[1][here], out=out[here])

    spread(work, range(0, len(out), step))
    return result
