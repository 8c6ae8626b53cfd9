"""numpy kernels in place of those of MLX's CPU back end, which computes exponentials one at a time.

They stand where mlx-lm's models look MLX's functions up, take float32 arrays on a CPU, evaluate
them, and write a new array. Everything else, and what is too small to be worth it, goes to MLX.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.nn.layers import activations as nn_activations
from mlx_lm.models import activations

from mlxscore_server import cpu_activations, cpu_norms, cpu_padded_attention, cpu_rope
from mlxscore_server.cpu_activations import Activation, activate
from mlxscore_server.cpu_threads import single_threaded_products

Function = Callable[..., Any]

# Elements below which MLX's own, lazy function takes less time than an evaluation and numpy's calls.
_LEAST_EXPONENTIALS = 2**12
_LEAST_OTHERS = 2**15


class _Installed:
    """What was replaced, how often that was asked for, and from what size on it is used."""

    def __init__(self) -> None:
        self.users = 0
        self.any_size = False
        self.undo = ExitStack()


_state = _Installed()


def install() -> None:
    """Replace MLX's functions for the models that are loaded, once their modules are.

    Each call asks for one `uninstall`.
    """
    _state.users += 1
    if _state.users == 1:
        _state.undo.enter_context(single_threaded_products())
    for owner, name, function in _places():
        original = getattr(owner, name)
        if not hasattr(original, _MARK):
            setattr(owner, name, _guarded(original, function))
            _state.undo.callback(setattr, owner, name, original)


def uninstall() -> None:
    """Once nobody needs them any more, everything is as it was."""
    if not _state.users:
        raise RuntimeError("uninstalled more often than installed")
    _state.users -= 1
    if not _state.users:
        _state.undo.close()


@contextmanager
def any_size() -> Generator[None]:
    """Meanwhile arrays of any size are computed here: for checks."""
    before, _state.any_size = _state.any_size, True
    try:
        yield
    finally:
        _state.any_size = before


_MARK = "__mlxscore_kernel__"


def _guarded(original: Function, function: Function) -> Function:
    """`function` where it has an answer, else `original`."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs) if "stream" not in kwargs else None
        return original(*args, **kwargs) if answer is None else answer

    setattr(call, _MARK, True)
    return call


def _places() -> Iterator[tuple[Any, str, Function]]:
    yield mx.fast, "rms_norm", _rms_norm
    yield mx.fast, "layer_norm", _layer_norm
    yield mx.fast, "rope", _rope
    yield mx.fast, "scaled_dot_product_attention", _attention
    for name in ("silu", "gelu", "gelu_approx", "gelu_fast_approx"):
        for owner in (nn, nn_activations):
            yield owner, name, _activation(getattr(cpu_activations, name))
    gated = {"swiglu": _gated(cpu_activations.silu), "geglu": _gated(cpu_activations.gelu_approx)}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(activations.__package__ or ""):
            for name, function in gated.items():
                if callable(vars(module).get(name)):
                    yield module, name, function


def _ready(least: int, size: int, *arrays: mx.array | None) -> bool:
    """Whether all are float32, worth it and to be had; then they are evaluated."""
    given = [array for array in arrays if array is not None]
    if size < least and not (_state.any_size and size):
        return False
    if any(array.dtype != mx.float32 for array in given):
        return False
    return _evaluated(given)


def _evaluated(arrays: list[mx.array]) -> bool:
    try:
        mx.eval(arrays)
    except ValueError:  # inside mx.compile and mx.grad there are no values yet
        return False
    return True


def _rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array | None:
    ready = _ready(_LEAST_OTHERS, x.size, x, weight)
    return cpu_norms.rms_norm(x, weight, eps) if ready else None


def _layer_norm(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float
) -> mx.array | None:
    ready = _ready(_LEAST_OTHERS, x.size, x, weight, bias)
    return cpu_norms.layer_norm(x, weight, bias, eps) if ready else None


def _rope(
    x: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
) -> mx.array | None:
    if x.ndim != 4 or not _ready(_LEAST_OTHERS, x.size, x, freqs):
        return None
    if isinstance(offset, mx.array) and not _evaluated([offset]):
        return None
    return cpu_rope.rope(
        x, dims, traditional=traditional, base=base, scale=scale, offset=offset, freqs=freqs
    )


def _attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    force_fused: bool = False,
) -> mx.array | None:
    num_scores = q.size // max(1, q.shape[-1]) * k.shape[-2]
    added = mask if isinstance(mask, mx.array) and mask.dtype != mx.bool_ else None
    if force_fused or not _ready(_LEAST_EXPONENTIALS, num_scores, q, k, v, sinks, added):
        return None
    if isinstance(mask, mx.array) and not _evaluated([mask]):
        return None
    return cpu_padded_attention.attention(q, k, v, scale, mask, sinks)


def _activation(function: Activation) -> Function:
    def call(x: mx.array) -> mx.array | None:
        return activate(function, x) if _ready(_LEAST_EXPONENTIALS, x.size, x) else None

    return call


def _gated(function: Activation) -> Function:
    def call(gate: mx.array, x: mx.array) -> mx.array | None:
        same = gate.shape == x.shape
        ready = same and _ready(_LEAST_EXPONENTIALS, x.size, gate, x)
        return activate(function, gate, x) if ready else None

    return call
