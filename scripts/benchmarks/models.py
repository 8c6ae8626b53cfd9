"""The model under test: the embedded one, or random weights of a real shape."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from benchmarks.shapes import SHAPES

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Model:
    model: Any
    config: dict[str, Any]
    tokenizer: Any
    folder: Path | None
    """Where its weights lie, if they came from there."""


def load(shape: str, on_gpu: bool, cache: Path) -> Model:
    """The same weights in every process; call it on the thread that runs the model."""
    if shape != "default":
        config = SHAPES[shape]
        model = random_model(config, mx.bfloat16 if on_gpu else mx.float32)
        return Model(model, config, None, None)
    from mlx_lm.utils import load as load_folder

    from mlxscore_server.default_model import ensure_default_model

    # As the server does: float32 weights are not multiplied in TF32.
    os.environ.setdefault("MLX_ENABLE_TF32", "0")
    folder = ensure_default_model(cache)
    model, tokenizer, config = load_folder(str(folder), return_config=True)
    return Model(model, config, tokenizer, folder)


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


def write_folder(model: Model) -> Path:
    """The weights as a checkpoint that other frameworks read; in shared memory where there is room."""
    arrays = dict(tree_flatten(model.model.parameters()))
    num_bytes = sum(array.nbytes for array in arrays.values())
    roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 1.2 * num_bytes
    folder = Path(tempfile.mkdtemp(prefix="mlxscore-bench-", dir=_SHARED_MEMORY if roomy else None))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "pt"})
    dtype = str(next(iter(arrays.values())).dtype).removeprefix("mlx.core.")
    config = model.config | {"architectures": ["LlamaForCausalLM"], "torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Weights:
    """What multiplies a token, to count floating-point operations by."""

    body: int
    """Weights of the body's matrices."""
    head: int

    @staticmethod
    def of(model: Any) -> "Weights":
        sizes = {n: a.size for n, a in tree_flatten(model.parameters()) if a.ndim == 2}
        embedding = sum(size for n, size in sizes.items() if "embed_tokens" in n)
        head = sum(size for n, size in sizes.items() if n.startswith("lm_head"))
        return Weights(sum(sizes.values()) - embedding - head, head or embedding)

    def flops(self, computed_tokens: int, wanted: int) -> float:
        """Of the products with weights alone; attention is not counted."""
        return 2.0 * (self.body * computed_tokens + self.head * wanted)


def describe(model: nn.Module) -> str:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    dtypes = sorted({str(array.dtype).removeprefix("mlx.core.") for array in arrays})
    num_bytes = sum(array.nbytes for array in arrays)
    return f"{', '.join(dtypes)}, {num_bytes / 1e9:.2f} GB"
