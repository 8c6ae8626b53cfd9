"""Where MLX, numpy and types meet: MLX's stubs leave these untyped, so each is said once, here."""

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten  # pyright: ignore[reportUnknownVariableType]
from numpy.typing import NDArray


def to_mlx(array: NDArray[Any]) -> mx.array:
    """A copy of a numpy array."""
    return mx.array(cast(Any, array))


def to_numpy(array: mx.array) -> NDArray[Any]:
    """A copy as numpy; evaluates the array. bfloat16, which numpy lacks, must be cast before."""
    return np.array(cast(Any, array))


def view_numpy(array: mx.array) -> NDArray[Any]:
    """The array's own memory as numpy (CPU); evaluates the array."""
    return np.array(cast(Any, array), copy=False)


def new_array(shape: tuple[int, ...]) -> tuple[mx.array, NDArray[np.float32]]:
    """A float32 array of nobody else's and its own memory, to be written before it is used (CPU)."""
    array = mx.zeros(shape)
    mx.eval(array)
    return array, view_numpy(array)


def parameters(model: nn.Module) -> list[tuple[str, mx.array]]:
    """A model's parameters by dotted name."""
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def dtype_name(dtype: mx.Dtype) -> str:
    """Such as `float32`."""
    return str(dtype).removeprefix("mlx.core.")


def mlx_version() -> str:
    return str(cast(Any, mx).__version__)
