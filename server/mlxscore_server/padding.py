"""Left padding: the batch as arrays, and stand-ins for the layers' caches that hide the padding.

    slot 0   [ 0  0  0 t0 t1 t2]     left_padding 3, positions -3 -2 -1 0 1 2
    slot 1   [t0 t1 t2 t3 t4 t5]     left_padding 0, positions  0  1  2 3 4 5

Two facts hide the padding from any attention model of mlx-lm: `offset = -left_padding`, so that a
slot's first real token stands at position 0 for RoPE, and a mask that shows no padded key. No
buffer of keys and values is made: scoring never decodes.
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_cache
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx
from mlxscore_server.row import Ids

MaskForm = Literal["additive", "additive-5d", "boolean"]
"""How a padded batch's mask is given: (B, 1, L, L) additive for fused attention; (B, 1, 1, L, L) for
models that split heads into groups and add the mask themselves (gemma2); (B, 1, L, L) bool."""

MASK_FORMS: tuple[MaskForm, ...] = ("additive", "additive-5d", "boolean")

# Finite, so that no row of attention scores is all -inf (NaN, which spreads); float16 ends at 65504.
HIDDEN = {mx.float32: -1e9, mx.bfloat16: -1e9, mx.float16: -3e4}


def right_justified(
    segments: Sequence[Ids], length: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(B, length) int32 ids, zeros on the left, and the (B,) int32 left padding."""
    lengths = np.array([len(segment) for segment in segments], np.int32)
    left_padding = np.int32(length) - lengths
    tokens = np.zeros((len(segments), length), np.int32)
    tokens[np.arange(length)[None, :] >= left_padding[:, None]] = np.concatenate(segments)
    return tokens, left_padding


class PaddedBatch:
    """What all layers share while one left-padded batch runs: positions and masks."""

    def __init__(
        self, left_padding: NDArray[np.int32], length: int, dtype: mx.Dtype, form: MaskForm
    ) -> None:
        self.padded = bool(left_padding.any())
        self.left_padding = left_padding
        self.length = length
        self.offset: mx.array | int = to_mlx(-left_padding) if self.padded else 0
        self._dtype = dtype
        self._form: MaskForm = form
        self._masks: dict[int | None, mx.array] = {}

    def mask(self, window_size: int | None, return_array: bool) -> mx.array | str | None:
        """The attention mask, made once for each window; "causal" where that says it all."""
        if window_size is not None and window_size >= self.length:
            window_size = None
        if not self.padded and window_size is None and not return_array:
            return "causal" if self.length > 1 else None
        if window_size not in self._masks:
            self._masks[window_size] = self._make_mask(window_size)
        return self._masks[window_size]

    def _make_mask(self, window_size: int | None) -> mx.array:
        query, key = mx.arange(self.length)[:, None], mx.arange(self.length)[None, :]
        seen = query >= key
        if window_size is not None:
            seen = seen & (query < key + window_size)
        # A padded query sees itself, which nobody reads, rather than nothing at all.
        shown = (key >= to_mlx(self.left_padding)[:, None, None]) | (query == key)
        mask = (seen[None] & shown)[:, None]
        if self._form == "boolean":
            return mask
        hidden = mx.array(HIDDEN[self._dtype], self._dtype)
        additive = mx.where(mask, mx.array(0, self._dtype), hidden)
        return additive[:, None] if self._form == "additive-5d" else additive


class PaddedLayer:
    """Stands where mlx-lm expects one attention layer's key/value cache."""

    def __init__(self, batch: PaddedBatch) -> None:
        self._batch = batch
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array | int:
        return self._batch.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None, **_: Any
    ) -> mx.array | str | None:
        assert self._batch.length == N, "this is a bug: the mask is for the whole batch"
        return self._batch.mask(window_size, return_array)


class UnknownCache(Exception):
    """A layer keeps a state that has no stand-in."""


_ATTENTION = (
    mlx_cache.KVCache,
    mlx_cache.RotatingKVCache,
    mlx_cache.ConcatenateKVCache,
    mlx_cache.ChunkedKVCache,
)


def stand_ins(template: Sequence[Any], batch: PaddedBatch) -> list[Any]:
    """A stand-in for each cache that the model would make for itself (`make_prompt_cache`).

    Layers with a recurrent state get mlx-lm's own state with its left padding set; some of those
    models heed it, others do not, which the self-check at load finds out. Raises UnknownCache.
    """
    return [_stand_in(layer, batch) for layer in template]


def _stand_in(layer: Any, batch: PaddedBatch) -> Any:
    if isinstance(layer, _ATTENTION):
        return PaddedLayer(batch)
    if isinstance(layer, mlx_cache.ArraysCache):
        padding = batch.left_padding.tolist() if batch.padded else None
        return mlx_cache.ArraysCache(len(cast(list[Any], layer.cache)), left_padding=padding)
    if isinstance(layer, mlx_cache.CacheList):
        return mlx_cache.CacheList(
            *(_stand_in(part, batch) for part in cast(list[Any], layer.caches))
        )
    raise UnknownCache(f"no stand-in for a {type(layer).__name__}")
