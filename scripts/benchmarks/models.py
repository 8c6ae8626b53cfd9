"""The model under test: the embedded one, or random weights of a real shape."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from benchmarks.shapes import SHAPES
from mlxscore_server.device import Device


def load(shape: str, device: Device, cache: Path) -> tuple[nn.Module, Path | None]:
    """The model; and its folder, if it has one that a server can load."""
    dtype = mx.float32 if device.name == "cpu" else mx.bfloat16
    if shape != "default":
        return random_model(SHAPES[shape], dtype), None
    from mlx_lm.utils import load_model

    from mlxscore_server.default_model import ensure_default_model

    # As the server does: float32 weights are not multiplied in TF32.
    os.environ.setdefault("MLX_ENABLE_TF32", "0")
    folder = ensure_default_model(cache)
    return load_model(folder)[0], folder


def random_model(shape: dict[str, Any], dtype: mx.Dtype) -> nn.Module:
    """Random weights (never zeros, which multiply faster), one array at a time."""
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(shape))  # lazy: nothing is allocated yet
    for name, lazy in tree_flatten(model.parameters()):
        if lazy.ndim == 1:
            array = mx.ones(lazy.shape, dtype)
        else:
            array = mx.random.normal(lazy.shape, dtype=dtype, scale=0.02)
        mx.eval(array)
        model.load_weights([(name, array)], strict=False)
    model.eval()
    mx.clear_cache()
    return model


def describe(model: nn.Module) -> str:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    dtypes = sorted({str(array.dtype).removeprefix("mlx.core.") for array in arrays})
    num_bytes = sum(array.nbytes for array in arrays)
    return f"{', '.join(dtypes)}, {num_bytes / 1e9:.2f} GB"
