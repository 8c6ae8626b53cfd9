"""Attention over a packed micro-batch's blocks, by MLX: gather, attend, put the answers back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import mlx.core as mx

from mlxscore_server.arrays import to_mlx
from mlxscore_server.blocks import Block, Blocks
from mlxscore_server.padding import HIDDEN


class BlockAttention(Protocol):
    """How a device does attention over blocks."""

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        blocks: "DeviceBlocks",
        *,
        scale: float,
        window: int | None,
        sinks: mx.array | None,
    ) -> mx.array:
        """(T, H, 1, D) queries of the micro-batch's tokens, (K + T, Hkv, 1, D) keys and (K + T, Hkv,
        1, Dv) values, kept ones first, to (T, H, 1, Dv). `window`: a query sees so many keys at most,
        itself included; `sinks`: (H,) logits that take part in each softmax and add nothing."""
        ...


@dataclass(frozen=True)
class BlockArrays:
    """A block's index arrays on the device."""

    queries: mx.array
    keys: mx.array


@dataclass(frozen=True, eq=False)
class DeviceBlocks(Blocks):
    """Blocks with what is made of them on the device: once a micro-batch, for all its layers."""

    _masks: dict[tuple[int, int | None, mx.Dtype], mx.array] = field(
        default_factory=dict[tuple[int, int | None, mx.Dtype], mx.array], init=False
    )

    @cached_property
    def arrays(self) -> list[BlockArrays | None]:
        """None for whole blocks."""
        return [
            None if block.whole else BlockArrays(to_mlx(block.queries), to_mlx(block.keys))
            for block in self.blocks
        ]

    @cached_property
    def out_array(self) -> mx.array | None:
        return None if self.out is None else to_mlx(self.out)

    @cached_property
    def reach(self) -> list[int]:
        """The window of each block's layers from which on it hides nothing there."""
        return [
            int(block.query_positions.max()) + 1
            if block.prefix is None
            else block.prefix + int(block.lengths.max())
            for block in self.blocks
        ]

    @cached_property
    def nearest(self) -> list[int]:
        """The first position at which each block asks; up to there all its rows' keys are the path."""
        return [int(block.query_positions.min()) for block in self.blocks]

    def mask(self, index: int, window: int | None, dtype: mx.Dtype) -> mx.array:
        """Additive, (B, 1, Q, K) of a block's keys from `first_key` on; (1, 1, Q, K) if causal."""
        key = index, window, dtype
        if key not in self._masks:
            block, first = self.blocks[index], self.first_key(index, window)
            rows = slice(None) if block.prefix is None else slice(0, 1)
            hidden = _hidden(block, rows, first, window)
            value = mx.array(HIDDEN[dtype], dtype)
            self._masks[key] = mx.where(hidden, value, mx.array(0, dtype))[:, None]
        return self._masks[key]

    def first_key(self, index: int, window: int | None) -> int:
        """How many of a block's first keys are before everybody's window."""
        return 0 if window is None else max(0, self.nearest[index] - window + 1)


def _hidden(block: Block, rows: slice, first: int, window: int | None) -> mx.array:
    """(B, Q, K) bool, made on the device from the small arrays."""
    query = to_mlx(block.query_positions[rows])[:, :, None]
    key = to_mlx(block.key_positions[rows, first:])[:, None, :]
    hidden = key > query
    if block.prefix is None:
        asks = to_mlx(block.query_segments[rows])[:, :, None]
        owner = to_mlx(block.key_segments[rows, first:])[:, None, :]
        hidden = hidden | ((owner != -1) & (owner != asks))
    return hidden if window is None else hidden | (key <= query - window)


Kernel = Callable[
    [mx.array, mx.array, mx.array, float, "mx.array | str", "mx.array | None"], mx.array
]
"""(B, H, Q, D) queries, (B, Hkv, K, D) keys, (B, Hkv, K, Dv) values, scale, mask, sinks to
(B, H, Q, Dv). The mask is "causal", aligned at the lower right, or additive."""


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    blocks: DeviceBlocks,
    *,
    scale: float,
    window: int | None,
    sinks: mx.array | None,
    kernel: Kernel,
) -> mx.array:
    """A `BlockAttention`, once `kernel` is given: what computes one block."""
    num_tokens, heads = queries.shape[:2]
    num_kept = keys.shape[0] - num_tokens
    q, k, v = _rows(queries), _rows(keys), _rows(values)
    answers: list[mx.array] = []
    for index, (block, arrays) in enumerate(zip(blocks.blocks, blocks.arrays, strict=True)):
        seen = window if window is not None and window < blocks.reach[index] else None
        first = blocks.first_key(index, seen)
        if arrays is None:
            token = int(block.queries[0, 0])
            asked = slice(token, token + block.queries.size)
            held = slice(asked.start + num_kept, asked.stop + num_kept)
            shape = block.queries.shape
            parts = [
                a[i].reshape(*shape, *a.shape[1:]) for a, i in ((q, asked), (k, held), (v, held))
            ]
        else:
            held_rows = arrays.keys[:, first:] if first else arrays.keys
            parts = [take(q, arrays.queries), take(k, held_rows), take(v, held_rows)]
        causal = block.prefix is not None and seen is None
        mask = "causal" if causal else blocks.mask(index, seen, queries.dtype)
        q_rows, k_rows, v_rows = (part.swapaxes(1, 2) for part in parts)
        answer = kernel(q_rows, k_rows, v_rows, scale, mask, sinks)
        answers.append(answer.swapaxes(1, 2).reshape(-1, heads, values.shape[-1]))
    joined = answers[0] if len(answers) == 1 else mx.concatenate(answers)
    if blocks.out_array is not None:
        joined = take(joined, blocks.out_array)
    return joined[:, :, None]


def take(array: mx.array, index: mx.array) -> mx.array:
    """Rows of (n, ...), index.shape + (...,): as 8-byte words where a row's bytes allow.

    MLX's gather costs by the element, whatever its width.
    """
    words = array.reshape(array.shape[0], -1)
    if words.shape[1] * array.dtype.size % 8 == 0:
        words = words.view(mx.uint64)
    taken = mx.take(words, index, axis=0).view(array.dtype)
    return taken.reshape(*index.shape, *array.shape[1:])


def _rows(array: mx.array) -> mx.array:
    """(n, heads, 1, dim) to (n, heads, dim)."""
    return array.reshape(array.shape[0], array.shape[1], array.shape[3])


def fused(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array | str,
    sinks: mx.array | None,
) -> mx.array:
    """MLX's own kernel as it comes."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)


def in_parts(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array | str,
    sinks: mx.array | None,
    score_bytes: int = 2**28,
) -> mx.array:
    """MLX's own kernel in parts whose float32 scores take no more than `score_bytes`, or of one query:
    for back ends without a fused kernel, which hold all scores (B, H, Q, K)."""
    rows, heads, num_queries, _ = q.shape
    num_keys = k.shape[2]
    query_bytes = heads * num_keys * 4
    if rows * num_queries * query_bytes <= score_bytes:
        return fused(q, k, v, scale, mask, sinks)
    row_step = max(1, score_bytes // (num_queries * query_bytes))
    query_step = max(1, min(num_queries, score_bytes // query_bytes))
    parts: list[mx.array] = []
    for row in range(0, rows, row_step):
        here = slice(row, row + row_step)
        some: list[mx.array] = []
        for query in range(0, num_queries, query_step):
            stop = min(query + query_step, num_queries)
            # Aligned at the lower right: the last of these queries sees the last of these keys.
            last = num_keys - num_queries + stop if isinstance(mask, str) else num_keys
            some.append(
                fused(
                    q[here, :, query:stop],
                    k[here, :, :last],
                    v[here, :, :last],
                    scale,
                    mask if isinstance(mask, str) else _part(mask, here, slice(query, stop)),
                    sinks,
                )
            )
        parts.append(mx.concatenate(some, axis=2))
    return mx.concatenate(parts)


def _part(mask: mx.array, rows: slice, queries: slice) -> mx.array:
    return mask[rows if mask.shape[0] > 1 else slice(None), :, queries]


attend_mlx: BlockAttention = partial(attend, kernel=fused)
"""By MLX's fused kernel, as on Metal."""
attend_in_parts: BlockAttention = partial(attend, kernel=in_parts)
"""By MLX on a CPU, where there is no fused kernel."""
