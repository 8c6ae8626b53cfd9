"""The kernel that the CUDA back end uses, on this machine: its answers are those of MLX's own."""

import mlx.core as mx
import numpy as np
import pytest

from mlxscore_server import cuda_attention
from mlxscore_server.block_attention import fused
from mlxscore_server.cuda_attention import CudaKernel
from mlxscore_server.padding import HIDDEN

TOLERANCE = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}
HEADS = [(4, 4), (8, 2), (6, 1)]


def block(
    dtype: mx.Dtype, heads: tuple[int, int], queries: int, keys: int, causal: bool
) -> tuple[mx.array, mx.array, mx.array, mx.array | str]:
    """Queries, keys, values narrower than keys, and a mask that leaves each query one key at least."""
    rng = np.random.default_rng(queries * keys)
    num_heads, num_kv_heads = heads

    def values(*shape: int) -> mx.array:
        return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)

    seen = rng.random((2, 1, queries, keys)) < 0.7
    seen[..., 0] = True
    mask = mx.where(mx.array(seen), 0.0, HIDDEN[dtype]).astype(dtype)
    return (
        values(2, num_heads, queries, 16),
        values(2, num_kv_heads, keys, 16),
        values(2, num_kv_heads, keys, 8),
        "causal" if causal else mask,
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 33), (7, 7), (5, 21), (200, 230)])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_its_answers_are_the_fused_kernels(
    dtype: mx.Dtype,
    heads: tuple[int, int],
    queries: int,
    keys: int,
    causal: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v, mask = block(dtype, heads, queries, keys, causal)
    expected = fused(q, k, v, 0.3, mask, None).astype(mx.float32)
    kernel = CudaKernel()
    for build_seconds in (1.0, 0.0):  # by plain products, then by the fused kernel
        monkeypatch.setattr(cuda_attention, "_BUILD_SECONDS", build_seconds)
        found = kernel(q, k, v, 0.3, mask, None)
        assert found.dtype == dtype and found.shape == expected.shape
        assert mx.abs(found.astype(mx.float32) - expected).max().item() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sinks_take_their_part(dtype: mx.Dtype) -> None:
    q, k, v, mask = block(dtype, (8, 2), 5, 9, causal=False)
    sinks = mx.array(np.linspace(-1, 3, 8).astype(np.float32)).astype(dtype)
    found = CudaKernel()(q, k, v, 0.3, mask, sinks).astype(mx.float32)
    expected = fused(q, k, v, 0.3, mask, sinks).astype(mx.float32)
    assert mx.abs(found - expected).max().item() <= TOLERANCE[dtype]
    without = fused(q, k, v, 0.3, mask, None).astype(mx.float32)
    assert mx.abs(found - without).max().item() > 10 * TOLERANCE[dtype]


def test_a_shape_gets_its_graph_once_that_has_been_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes: list[tuple[int, ...]] = []

    def counted(*args: object) -> mx.array:
        assert isinstance(args[0], mx.array)
        shapes.append(args[0].shape)
        return fused(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(cuda_attention, "fused", counted)
    q, k, v, mask = block(mx.bfloat16, (4, 4), 5, 21, causal=False)
    calls = 3
    spent = calls * cuda_attention._SECONDS_A_SCORE * 2 * 4 * 5 * 21
    monkeypatch.setattr(cuda_attention, "_BUILD_SECONDS", spent * 0.99)
    kernel = CudaKernel()
    for _ in range(calls):
        kernel(q, k, v, 0.3, mask, None)
    assert not shapes
    kernel(q, k, v, 0.3, mask, None)
    assert shapes == [q.shape]
    shapes.clear()
    q, k, v, mask = block(mx.bfloat16, (4, 4), 6, 21, causal=False)
    kernel(q, k, v, 0.3, mask, None)
    assert not shapes  # each shape has its own account


def test_float32_and_large_blocks_are_the_fused_kernels_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain: list[int] = []
    monkeypatch.setattr(cuda_attention, "plain_attention", lambda *args: plain.append(1))
    q, k, v, mask = block(mx.float32, (4, 4), 5, 21, causal=False)
    CudaKernel()(q, k, v, 0.3, mask, None)
    monkeypatch.setattr(cuda_attention, "_MOST_SCORES", 2 * 4 * 5 * 21 - 1)
    q, k, v, mask = block(mx.bfloat16, (4, 4), 5, 21, causal=False)
    CudaKernel()(q, k, v, 0.3, mask, None)
    assert not plain


def test_warm_up_needs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = CudaKernel()
    kernel.warm_up()
    ran: list[mx.Dtype] = []
    monkeypatch.setattr(cuda_attention, "fused", lambda q, *rest: ran.append(q.dtype) or q)
    kernel.warm_up()
    assert not ran
    q, k, v, mask = block(mx.bfloat16, (4, 4), 5, 21, causal=False)
    kernel(q, k, v, 0.3, mask, None)
    kernel.warm_up()
    assert ran and set(ran) == {mx.bfloat16}
