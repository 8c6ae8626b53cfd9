"""Quantized weights unpacked at load: scoring computes much on each weight, so packed ones only cost."""

import logging
from typing import cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear
from mlx_lm.utils import dequantize_model

from mlxscore_server.device import Device
from mlxscore_server.settings import Dequantize

log = logging.getLogger("mlxscore")

_QUANTIZED = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
# Weights may fill this part of the device's memory; the rest is for activations and kept prefixes.
_MOST_MEMORY = 0.6


def unpack(model: nn.Module, choice: Dequantize, dtype: mx.Dtype, device: Device) -> bool:
    """Give the model plain weights in `dtype` in place of quantized ones, lazily; whether it did.

    auto: on a CPU (there is no BLAS for quantized products), and on CUDA where they fit into memory:
    one H200, 8B in 4 bits, 16,384 tokens: 9.1 k tokens/s packed, 41.6 k as bf16. Not on Metal, where
    it was not measured.
    """
    named = cast("list[tuple[str, nn.Module]]", model.named_modules())
    quantized = {name: module for name, module in named if isinstance(module, _QUANTIZED)}
    if not quantized or choice == "never":
        return False
    needed = sum(_num_weights(module) for module in quantized.values()) * dtype.size
    if choice == "auto":
        if device.name == "metal":
            return False
        if needed > _MOST_MEMORY * device.memory_bytes:
            log.info(
                "quantized weights stay packed: they would take %.1f GB of this device's %.1f",
                needed / 1e9,
                device.memory_bytes / 1e9,
            )
            return False
    for module in quantized.values():
        module.set_dtype(mx.float32)  # so that a weight is rounded once, to `dtype`
    dequantize_model(model)
    for name, module in cast("list[tuple[str, nn.Module]]", model.named_modules()):
        if name in quantized:
            module.set_dtype(dtype)
    log.info("quantized weights are unpacked: %.1f GB", needed / 1e9)
    return True


def _num_weights(module: nn.Module) -> int:
    assert isinstance(module, _QUANTIZED)
    return module.scales.size * module.group_size
