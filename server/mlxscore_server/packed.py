"""The packed layout: all tokens of a micro-batch are rows of a batch of length one.

The model reads (T, 1) tokens; the stand-ins for its layers' caches give each its true position, which
mlx-lm's attention hands to RoPE row by row. Projections, norms, experts and the head see exactly T
tokens. What sees what is up to attention alone, which `attention` turns to the blocks here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import ref

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_cache
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx
from mlxscore_server.block_attention import BlockAttention, DeviceBlocks, attend_mlx
from mlxscore_server.blocks import Blocks
from mlxscore_server.padding import UnknownCache

LayerRows = tuple[mx.array, mx.array]
"""A layer's keys and values: (n, Hkv, D), (n, Hkv, Dv)."""

# Not ChunkedKVCache: its models make their own masks from the cache's place in the text.
_ATTENTION = (mlx_cache.KVCache, mlx_cache.RotatingKVCache, mlx_cache.ConcatenateKVCache)


class NotPackable(Exception):
    """The model does something of its own where packed attention must come in."""


@dataclass(frozen=True, eq=False)
class PackedMask:
    """What models of mlx-lm carry from `make_mask` to attention: no mask, but what it depends on.

    A model that uses it as an array fails, as it should.
    """

    batch: "PackedBatch"
    window: int | None


class PackedBatch:
    """What all layers share while one packed micro-batch runs."""

    def __init__(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[Any],
        blocks: Blocks,
        kept: Sequence[LayerRows] = (),
        attend: BlockAttention = attend_mlx,
        begin_every: int | None = None,
    ) -> None:
        """(T,) `tokens` and their true `positions`; `kept`: what the key rows in `blocks` begin with,
        for each attention layer, nothing where there are no kept rows. After `begin_every` layers the
        device may begin with what is known by then."""
        self.x = to_mlx(tokens.astype(np.int32))[:, None]
        """(T, 1) what the model reads."""
        self.offset = to_mlx(positions.astype(np.int32))
        self._blocks = DeviceBlocks(blocks.blocks, blocks.out)
        self._kept = kept
        self._attend = attend
        self._begin_every = begin_every
        self._layers: list[PackedLayer] = []

    def stand_ins(self, template: Sequence[Any]) -> list[Any]:
        """A stand-in for each cache that the model would make for itself (`make_prompt_cache`).

        Raises UnknownCache, as for a recurrent state: that has no packed form.
        """
        self._layers.clear()
        return [self._stand_in(layer) for layer in template]

    def layer_rows(self) -> list[LayerRows]:
        """After the model ran: what each attention layer made of the T tokens."""
        return [layer.rows for layer in self._layers]

    def attention(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None,
    ) -> mx.array:
        """In place of mlx-lm's function of the same arguments, for this batch."""
        if isinstance(mask, PackedMask):
            window = mask.window
        elif mask is None or mask == "causal":
            window = None
        else:
            raise NotPackable("the model changes the mask")
        if queries.ndim != 4 or queries.shape[0] != self.x.shape[0] or queries.shape[2] != 1:
            raise NotPackable(f"the model's queries are of shape {queries.shape}")
        layer = cache if isinstance(cache, PackedLayer) else self._layer_of(keys)
        if self._kept:
            kept_keys, kept_values = self._kept[layer.index]
            keys = mx.concatenate([kept_keys[:, :, None], keys])
            values = mx.concatenate([kept_values[:, :, None], values])
        answer = self._attend(
            queries, keys, values, self._blocks, scale=scale, window=window, sinks=sinks
        )
        if self._begin_every and not layer.index % self._begin_every:
            mx.async_eval(answer)
        return answer

    def _layer_of(self, keys: mx.array) -> "PackedLayer":
        # Layers that use another one's keys get no cache (gemma4), but that one's very array.
        for layer in self._layers:
            if layer.keys is keys:
                return layer
        raise NotPackable("a layer attends without a cache")

    def _stand_in(self, cache: Any) -> Any:
        if isinstance(cache, _ATTENTION):
            self._layers.append(PackedLayer(self, len(self._layers)))
            return self._layers[-1]
        if isinstance(cache, mlx_cache.CacheList):
            return mlx_cache.CacheList(
                *(self._stand_in(part) for part in cast(list[Any], cache.caches))
            )
        raise UnknownCache(f"no packed stand-in for a {type(cache).__name__}")


class PackedLayer:
    """Stands where mlx-lm expects one attention layer's key/value cache."""

    def __init__(self, batch: PackedBatch, index: int) -> None:
        # Weak: each would keep the other, and the arrays of both, until the next garbage collection.
        self._batch = ref(batch)
        self.index = index
        """Among the attention layers."""
        self.keys: mx.array | None = None
        """(T, Hkv, 1, D)"""
        self.values: mx.array | None = None

    @property
    def batch(self) -> PackedBatch:
        """Raises NotPackable once nobody holds it any more."""
        batch = self._batch()
        if batch is None:
            raise NotPackable("a layer is used after its micro-batch")
        return batch

    @property
    def offset(self) -> mx.array:
        return self.batch.offset

    @property
    def rows(self) -> LayerRows:
        """(T, Hkv, D) keys and (T, Hkv, Dv) values."""
        keys, values = self.keys_and_values()
        return keys[:, :, 0], values[:, :, 0]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Also for layers that use another one's keys (gemma3n)."""
        if self.keys is None or self.values is None:
            raise NotPackable("an attention layer did not use its cache")
        return self.keys, self.values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys, self.values = keys, values
        return keys, values

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None, **_: Any
    ) -> PackedMask:
        if return_array:
            raise NotPackable("the model adds its mask itself")
        return PackedMask(self.batch, window_size)
