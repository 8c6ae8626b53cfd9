"""Tiny models as folders on disk, as mlx-lm loads them."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from tiny_models import build, config_of
from tiny_tokenizers import byte_level

LORA = {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "mlp.up_proj"]}


def save_model(
    folder: Path,
    name: str = "llama",
    *,
    dtype: mx.Dtype = mx.float32,
    quantize: bool = False,
    **changes: Any,
) -> Path:
    """A random model whose vocabulary is its byte-level tokenizer's."""
    tokenizer = byte_level()
    changes = {"vocab_size": len(tokenizer)} | changes
    model = build(name, **changes)
    config = config_of(name) | changes
    if quantize:
        nn.quantize(model, group_size=32, bits=4)
        config["quantization"] = {"group_size": 32, "bits": 4}
    model.set_dtype(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(str(folder))
    return folder


def save_successor(folder: Path) -> Path:
    """A llama whose answers are known: after id i it is all but certain of i + 1 (of 0 after the last)."""
    size = len(byte_level())
    wide = 32 * -(-size // 32)  # a direction for each id
    shape = {"vocab_size": size, "hidden_size": wide, "num_hidden_layers": 1}
    save_model(folder, "llama-untied", **shape)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    each = mx.eye(size, wide)
    weights["model.embed_tokens.weight"] = each
    # After the norm, the one that is not 0 is sqrt(wide), about 17.
    weights["lm_head.weight"] = 2 * mx.concatenate([each[-1:], each[:-1]])
    for name in ("self_attn.o_proj", "mlp.down_proj"):  # nothing but the token itself counts
        weights[f"model.layers.0.{name}.weight"] *= 0
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


def save_adapter(folder: Path, name: str = "llama") -> Path:
    """A LoRA adapter that changes the scores of `save_model`'s model."""
    model = build(name, vocab_size=len(byte_level()))
    model.freeze()
    linear_to_lora_layers(model, 2, LORA)
    mx.random.seed(5)
    weights = {
        key: mx.random.normal(value.shape) * 0.3
        for key, value in tree_flatten(model.trainable_parameters())
    }
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
