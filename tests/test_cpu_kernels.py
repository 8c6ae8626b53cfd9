"""numpy kernels of the CPU back end against MLX's own functions, and through whole models."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import activations, llama
from tiny_models import CONFIGS, RECURRENT, VOCAB, build

from mlxscore_server import cpu_kernels, cpu_threads
from mlxscore_server.arrays import new_array, to_mlx, view_numpy
from mlxscore_server.block_attention import DeviceBlocks, attend_mlx
from mlxscore_server.block_costs import BlockCosts
from mlxscore_server.blocks import cut
from mlxscore_server.cpu_attention import attend_numpy

TOLERANCE = 2e-5


@pytest.fixture
def kernels() -> Iterator[None]:
    cpu_kernels.install()
    with cpu_kernels.any_size():
        yield
    cpu_kernels.uninstall()


def normal(*shape: int, seed: int = 0) -> mx.array:
    return to_mlx(np.random.default_rng(seed).standard_normal(shape, np.float32))


def heads_last(batch: int, heads: int, length: int, size: int, seed: int) -> mx.array:
    """(B, h, L, D) as attention gets it: a view of (B, L, h, D)."""
    return normal(batch, length, heads, size, seed=seed).swapaxes(1, 2)


def both(call: Callable[[], mx.array]) -> tuple[np.ndarray, np.ndarray]:
    """By MLX and by the kernels."""
    theirs = np.array(call())
    cpu_kernels.install()
    try:
        with cpu_kernels.any_size():
            answer = call()
            ours = np.array(answer)
    finally:
        cpu_kernels.uninstall()
    assert answer.dtype == mx.float32
    return theirs, ours


def assert_same(call: Callable[[], mx.array], tolerance: float = TOLERANCE) -> None:
    theirs, ours = both(call)
    assert ours.shape == theirs.shape
    assert np.isfinite(ours).all()
    assert np.abs(ours - theirs).max() <= tolerance


WIDE = [-np.inf, -1e30, -200.0, -88.8, -20.0, -1e-30, 0.0, 1e-30, 0.5, 20.0, 100.0, 1e30]


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_approx", "gelu_fast_approx"])
def test_activations(name: str) -> None:
    x = mx.concatenate([3 * normal(5, 7, 300), mx.zeros((5, 1, 300))], axis=1)
    assert_same(lambda: getattr(nn, name)(x))
    wide = mx.array([WIDE[1:]])
    theirs, ours = both(lambda: getattr(nn, name)(wide))
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(ours - theirs) <= TOLERANCE * np.maximum(1, np.abs(theirs))
    # x^3 overflows: there MLX's answer is not a number or infinite where ours is the limit.
    assert (near | (np.abs(wide[0]) > 1e10)).all()
    assert not np.isnan(ours).any()


def test_gated_activations_of_views() -> None:
    """Halves of one array, as phi3 hands them over."""
    gate, x = mx.split(normal(4, 6, 128), 2, axis=-1)
    assert_same(lambda: activations.swiglu(gate, x))
    assert_same(lambda: activations.swiglu(gate[:, ::2], x[:, ::2]))


def test_no_argument_is_written_to() -> None:
    gate, x = normal(4, 64, seed=1), normal(4, 64, seed=2)
    before = np.array(gate), np.array(x)
    _ = both(lambda: activations.swiglu(gate, x))
    _ = both(lambda: mx.fast.rms_norm(x, None, 1e-5))
    assert (np.array(gate) == before[0]).all()
    assert (np.array(x) == before[1]).all()


def test_new_arrays_are_nobody_elses() -> None:
    pairs = [new_array(shape) for shape in [(1,), (1,), (3, 5), (3, 5), (1, 1)] * 3]
    for i, (array, memory) in enumerate(pairs):
        memory[...] = i
        assert np.shares_memory(memory, view_numpy(array))
    for i, (array, _) in enumerate(pairs):
        assert (np.array(array) == i).all()
        assert (np.array(array + 1) == i + 1).all()
    assert mx.zeros((3, 5)).sum().item() == 0


@pytest.mark.parametrize("weighted", [True, False])
def test_norms(weighted: bool) -> None:
    x = normal(3, 5, 2, 96) * 7 + 2
    weight, bias = (normal(96, seed=1), normal(96, seed=2)) if weighted else (None, None)
    assert_same(lambda: mx.fast.rms_norm(x, weight, 1e-5))
    assert_same(lambda: mx.fast.layer_norm(x, weight, bias, 1e-5))
    assert_same(lambda: mx.fast.rms_norm(x.swapaxes(1, 2), weight, 1e-5))
    assert_same(lambda: mx.fast.layer_norm(0 * x, weight, bias, 1e-5))


@pytest.mark.parametrize("traditional", [True, False])
@pytest.mark.parametrize("dims", [64, 16])
def test_rope(traditional: bool, dims: int) -> None:
    x, packed = heads_last(3, 5, 7, 64, 1), normal(40, 5, 1, 64)
    positions = to_mlx(np.random.default_rng(0).integers(0, 8000, 40).astype(np.int32))
    freqs = mx.exp(mx.arange(dims // 2) / 3)
    for array, offset in (
        (x, 0),
        (x, 4000),
        (x, mx.array([-2, 0, 5])),
        (x, mx.array(3)),
        (packed, positions),
        (normal(2, 5, 7, 64), 0),
    ):
        for base, given_freqs in ((1e4, None), (None, freqs)):
            assert_same(
                lambda array=array, offset=offset, base=base, given=given_freqs: mx.fast.rope(
                    array,
                    dims,
                    traditional=traditional,
                    base=base,
                    scale=0.5,
                    offset=offset,
                    freqs=given,
                )
            )


@given(
    batch=st.integers(1, 5),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    length=st.integers(1, 150),
    before=st.integers(0, 40),
    form=st.sampled_from(["none", "causal", "additive", "boolean", "shared"]),
    with_sinks=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_attention_of_batches(
    batch: int,
    key_heads: int,
    group: int,
    length: int,
    before: int,
    form: str,
    with_sinks: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    heads, num_keys = key_heads * group, length + before
    q = heads_last(batch, heads, length, 16, seed)
    k = heads_last(batch, key_heads, num_keys, 16, seed + 1)
    v = heads_last(batch, key_heads, num_keys, 24, seed + 2)
    mask: mx.array | str | None = {"none": None, "causal": "causal"}.get(form)
    if mask is None and form != "none":
        rows = 1 if form == "shared" else batch
        seen = rng.random((rows, 1, length, num_keys)) < 0.4
        # Left padding, and keys that everybody sees, so that there is something to leave out.
        seen[..., : num_keys // 3] = False
        seen[..., num_keys // 2] = True
        bias = rng.standard_normal(seen.shape).astype(np.float32) if form == "shared" else 0.0
        additive = np.where(seen, bias, -1e9).astype(np.float32)
        mask = to_mlx(seen if form == "boolean" else additive)
    sinks = normal(heads, seed=seed) if with_sinks else None
    assert_same(
        lambda: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask, sinks=sinks)
    )


def test_attention_with_a_mask_of_the_same_shape_but_other_values() -> None:
    """Tiles are remembered by what the mask holds."""
    q, k, v = (heads_last(2, 2, 9, 8, seed) for seed in range(3))
    for seed in range(3):
        seen = np.random.default_rng(seed).random((2, 1, 9, 9)) < 0.6
        seen |= np.eye(9, dtype=bool)
        mask = to_mlx(np.where(seen, 0, -1e9).astype(np.float32))
        assert_same(
            lambda mask=mask: mx.fast.scaled_dot_product_attention(q, k, v, scale=1, mask=mask)
        )


def test_masks_of_heads_are_left_to_mlx(kernels: None) -> None:
    q, k, v = (heads_last(2, 3, 9, 8, seed) for seed in range(3))
    mask = normal(1, 3, 9, 9)
    ours = mx.fast.scaled_dot_product_attention(q, k, v, scale=1, mask=mask)
    scores = np.array(q) @ np.array(k).swapaxes(-1, -2) + np.array(mask)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.abs(np.array(ours) - weights @ np.array(v)).max() <= TOLERANCE


COSTS = BlockCosts(
    short=6,
    max_queries=24,
    query_multiple=1,
    masked_query_multiple=1,
    key_multiple=1,
    max_block_keys=300,
    block=200,
    mask_factor=1.3,
    query_row=2,
    key_row=1,
)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=14),
    window=st.sampled_from([None, 1, 5, 30]),
    multiple=st.sampled_from([1, 8]),
    with_sinks=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_attention_of_blocks(
    sizes: list[int], window: int | None, multiple: int, with_sinks: bool, seed: int
) -> None:
    """Random trees, part of them kept, against MLX's block attention."""
    rng = np.random.default_rng(seed)
    lengths = np.array(sizes)
    parents = np.array([int(rng.integers(-1, i)) if i else -1 for i in range(len(sizes))])
    starts = np.zeros_like(lengths)
    kept: list[Any] = [None] * len(sizes)
    num_kept = 0
    for i, parent in enumerate(parents):
        if parent >= 0:
            starts[i] = starts[parent] + lengths[parent]
        elif rng.random() < 0.5:  # it continues what is kept
            starts[i] = int(rng.integers(1, 20))
            kept[i] = np.arange(num_kept, num_kept + starts[i], dtype=np.int32)
            num_kept += int(starts[i])
    costs = COSTS if multiple == 1 else BlockCosts(**{**vars(COSTS), "query_multiple": multiple})
    found = cut(lengths, starts, parents, kept, costs, num_kept=num_kept)
    blocks = DeviceBlocks(found.blocks, found.out)
    total = int(lengths.sum())
    q = normal(total, 6, 1, 16, seed=1)
    k, v = normal(num_kept + total, 2, 1, 16, seed=2), normal(num_kept + total, 2, 1, 8, seed=3)
    sinks = normal(6) if with_sinks else None
    arguments: dict[str, Any] = {"scale": 0.4, "window": window, "sinks": sinks}
    theirs = np.array(attend_mlx(q, k, v, blocks, **arguments))
    for _ in range(2):  # the second time with the tiles of the first
        ours = np.array(attend_numpy(q, k, v, blocks, **arguments))
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= TOLERANCE


def test_half_precision_blocks_are_left_to_mlx() -> None:
    found = cut(np.array([5]), np.array([0]), np.array([-1]), [None], COSTS, num_kept=0)
    q, k, v = (normal(5, 2, 1, 8, seed=seed).astype(mx.bfloat16) for seed in range(3))
    blocks = DeviceBlocks(found.blocks, found.out)
    ours = attend_numpy(q, k, v, blocks, scale=1, window=None, sinks=None)
    assert ours.dtype == mx.bfloat16
    assert mx.array_equal(ours, attend_mlx(q, k, v, blocks, scale=1, window=None, sinks=None))


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_models(name: str) -> None:
    model = build(name)
    tokens = to_mlx(np.random.default_rng(0).integers(0, VOCAB, (3, 21)))
    theirs, ours = both(lambda: model(tokens))
    assert np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, float(np.abs(theirs).max()))


def test_everything_is_as_it_was_after_the_last_uninstall() -> None:
    def places() -> list[Any]:
        return [
            llama.swiglu,
            activations.swiglu,
            nn.gelu,
            nn.layers.activations.gelu,
            mx.fast.rope,
            mx.fast.rms_norm,
            mx.fast.layer_norm,
            mx.fast.scaled_dot_product_attention,
        ]

    before = places()
    cpu_kernels.install()
    cpu_kernels.install()
    assert all(a is not b for a, b in zip(before, places(), strict=True))
    cpu_kernels.uninstall()
    assert all(a is not b for a, b in zip(before, places(), strict=True))
    cpu_kernels.uninstall()
    assert all(a is b for a, b in zip(before, places(), strict=True))
    with pytest.raises(RuntimeError):
        cpu_kernels.uninstall()


def test_what_is_small_or_of_another_type_stays_lazy_and_is_mlxs_own() -> None:
    large, small = normal(64, 128), normal(2, 3)
    half = large.astype(mx.float16)
    theirs = [np.array(nn.silu(x).astype(mx.float32)) for x in (small, half)]
    cpu_kernels.install()
    try:
        ours = [nn.silu(x) for x in (small, half)]
    finally:
        cpu_kernels.uninstall()
    assert ours[1].dtype == mx.float16
    for mine, other in zip(ours, theirs, strict=True):
        assert (np.array(mine.astype(mx.float32)) == other).all()


def test_inside_of_compiled_functions_mlx_goes_on(kernels: None) -> None:
    x = normal(64, 128)

    @mx.compile
    def compiled(x: mx.array) -> mx.array:
        return nn.silu(x) * 2

    gradient = mx.grad(lambda x: activations.swiglu(x, x).sum())(x)
    assert np.abs(np.array(compiled(x)) - 2 * np.array(nn.silu(x))).max() <= TOLERANCE
    assert gradient.shape == x.shape


def test_threads_share_parts_and_raise() -> None:
    done: list[int] = []
    cpu_threads.spread(done.extend, range(1000))
    assert sorted(done) == list(range(1000))

    def fail(parts: Iterator[int]) -> None:
        for part in parts:
            if part == 7:
                raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        cpu_threads.spread(fail, range(100))
