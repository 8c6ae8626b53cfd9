"""Where packed attention comes in: one wrapper for the attention function that mlx-lm's models share.

Over a hundred model files call `scaled_dot_product_attention` of `mlx_lm.models.base` by a name in
their own module. The wrapper stands under these names while someone needs it, knows our stand-ins
and hands everything else on.
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models import base

from mlxscore_server.packed import PackedLayer, PackedMask

_NAME = "scaled_dot_product_attention"
_original = cast(Callable[..., mx.array], base.scaled_dot_product_attention)
_users = 0


def packed_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's function, but for packed micro-batches."""
    batch = None
    if isinstance(cache, PackedLayer):
        batch = cache.batch
    elif cache is None and isinstance(mask, PackedMask):
        batch = mask.batch
    if batch is None:
        return _original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    return batch.attention(queries, keys, values, cache, scale, mask, sinks)


def install() -> None:
    """Put the wrapper into all models' modules that are loaded: after the model's own.

    Each call asks for one `uninstall`.
    """
    global _users
    _users += 1
    _replace(_original, packed_attention)


def uninstall() -> None:
    """Once nobody needs it any more, everything is as it was."""
    global _users
    if not _users:
        raise RuntimeError("uninstalled more often than installed")
    _users -= 1
    if not _users:
        _replace(packed_attention, _original)


def _replace(old: Any, new: Any) -> None:
    for module in _modules():
        if vars(module).get(_NAME) is old:
            setattr(module, _NAME, new)


def _modules() -> Iterator[ModuleType]:
    # A module that was loaded meanwhile took the wrapper from `base` and must give it back as well.
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models."):
            yield module
