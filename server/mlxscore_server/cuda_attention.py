"""Attention over blocks on CUDA, where each new shape of the fused kernel costs before it runs."""

import mlx.core as mx

from mlxscore_server.block_attention import fused

# One H200, bf16: cuDNN builds a graph for each shape that it has not seen, 42 to 60 ms, once. Without the
# fused kernel attention takes 5 to 23 ps a score more in each layer.
_BUILD_SECONDS = 0.045
_SECONDS_A_SCORE = 20e-12
# So beyond this many scores a graph is built at once: the layers of one pass pay for it.
_MOST_SCORES = 2**24
# The fused kernel works on tiles of 128 queries of one head, and fewer leave the rest of a tile idle.
# 32 heads, 8 of keys, 128 wide, 32 rows with 1,600 keys, masked, ms: 16 queries 0.35, folded 0.16; 32:
# 0.35, 0.17; 64: 0.36, 0.26; 96: 0.39, 0.34; one row of 256 with 1,856 keys: 0.07, 0.10.
_MOST_FOLDED = 384


class CudaKernel:
    """A kernel that builds the fused one's graph for a shape once that has been worth it.

    Until then a small block goes through plain products and a softmax in float32: a short request in a
    shape that never comes again does not pay for its graph.
    """

    def __init__(self) -> None:
        self._spent: dict[tuple[object, ...], float] = {}
        """Seconds lost for each shape so far; at `_BUILD_SECONDS` its graph is built."""
        self._model: tuple[int, int, int, mx.Dtype] | None = None
        """Heads, key heads, head dim and dtype of the last call."""

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        scale: float,
        mask: mx.array | str,
        sinks: mx.array | None,
    ) -> mx.array:
        rows, heads, num_queries, dim = q.shape
        kv_heads = k.shape[1]
        self._model = heads, kv_heads, dim, q.dtype
        group = heads // kv_heads
        few = group * num_queries <= _MOST_FOLDED
        if isinstance(mask, mx.array) and sinks is None and group > 1 and few:
            # The heads that share keys fill a tile together.
            q = q.reshape(rows, kv_heads, group * num_queries, dim)
            mask = mx.tile(mask, (1, 1, group, 1))
        if sinks is None and self._goes_plain(q, k, v, mask):
            answer = plain_attention(q, k, v, scale, mask)
        else:
            answer = fused(q, k, v, scale, mask, sinks)
        return answer.reshape(rows, heads, num_queries, v.shape[3])

    def _goes_plain(self, q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str) -> bool:
        """Whether this shape has not yet cost what its graph would; if so, this time is added."""
        num_scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        half = q.dtype in (mx.bfloat16, mx.float16)  # float32 has no fused kernel
        if not half or num_scores > _MOST_SCORES:
            return False
        shape = (q.shape, k.shape, v.shape[3], q.dtype, isinstance(mask, str) or mask.shape)
        spent = self._spent.get(shape, 0.0)
        if spent >= _BUILD_SECONDS:
            return False
        self._spent[shape] = spent + _SECONDS_A_SCORE * num_scores
        return True

    def warm_up(self) -> None:
        """Have the fused kernels compiled for the model that was last run: the first graph of each kind
        takes about a second."""
        if self._model is None or self._model[3] == mx.float32:
            return
        heads, kv_heads, dim, dtype = self._model
        for rows, num_queries, num_keys, causal in _KINDS:
            q = mx.zeros((rows, heads, num_queries, dim), dtype)
            k = mx.zeros((rows, kv_heads, num_keys, dim), dtype)
            mask = "causal" if causal else mx.zeros((rows, 1, num_queries, num_keys), dtype)
            mx.eval(fused(q, k, k, 1.0, mask, None))


_KINDS = ((2, 128, 128, True), (2, 64, 192, True), (2, 128, 128, False), (2, 64, 192, False))


def plain_attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | str
) -> mx.array:
    """(B, H, Q, D), (B, Hkv, K, D), (B, Hkv, K, Dv) to (B, H, Q, Dv), all in float32.

    Half-precision numbers are exact in TF32, so products lose nothing there.
    """
    rows, heads, num_queries, dim = q.shape
    kv_heads, num_keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    folded = (q.astype(mx.float32) * scale).reshape(rows, kv_heads, group * num_queries, dim)
    scores = folded @ k.astype(mx.float32).swapaxes(-1, -2)
    scores = scores.reshape(rows, kv_heads, group, num_queries, num_keys)
    if isinstance(mask, str):
        last = mx.arange(num_queries)[:, None] + (num_keys - num_queries)
        scores = mx.where(mx.arange(num_keys)[None] <= last, scores, -1e9)
    else:
        scores = scores + mask[:, :, None].astype(mx.float32)
    weights = mx.softmax(scores, axis=-1).reshape(rows, kv_heads, group * num_queries, num_keys)
    answer = weights @ v.astype(mx.float32)
    return answer.reshape(rows, heads, num_queries, v.shape[3]).astype(q.dtype)
