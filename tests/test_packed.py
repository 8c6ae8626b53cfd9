"""The packed layout on tiny random models, against each path alone through the model's own call."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from forest import SHAPE, Forest
from mlx_lm.models import base, llama
from mlx_lm.models.cache import ChunkedKVCache, KVCache, make_prompt_cache
from tiny_models import CACHED_ONLY, CONFIGS, build

from mlxscore_server import attention
from mlxscore_server.block_attention import attend, in_parts
from mlxscore_server.block_costs import BlockCosts
from mlxscore_server.blocks import cut
from mlxscore_server.packed import NotPackable, PackedBatch
from mlxscore_server.padding import UnknownCache

# All blocks of any kind that these have; families; a mask is cheap, or nearly forbidden.
COSTS = replace(
    BlockCosts.cuda(),
    short=6,
    query_multiple=4,
    masked_query_multiple=2,
    key_multiple=8,
    max_block_keys=150,
    block=300,
    query_row=3,
    key_row=1,
)
CAUSAL = replace(COSTS, short=1, mask_factor=50, block=3000)
MASKED = replace(COSTS, mask_factor=0.5, max_block_keys=2000, max_queries=7)
OWN_ATTENTION = {"gemma2"}


@pytest.fixture
def installed() -> Iterator[None]:
    attention.install()
    yield
    attention.uninstall()


def packed(forest: Forest, model: Any, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
    attention.install()
    try:
        return forest.packed(model, *args, **kwargs)
    finally:
        attention.uninstall()


@pytest.mark.parametrize("name", [n for n in [*CONFIGS, *CACHED_ONLY] if n not in OWN_ATTENTION])
def test_packed_equals_alone(name: str) -> None:
    model, forest = build(name), Forest.of(SHAPE)
    alone = forest.alone(model)
    for costs, cuts in ((COSTS, ()), (CAUSAL, (1, 5, 17)), (MASKED, (1, 10, 18))):
        assert np.abs(packed(forest, model, costs, cuts) - alone).max() < 2e-4, (costs, cuts)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss"])
def test_no_way_to_cut_shows(name: str) -> None:
    model, forest = build(name), Forest.of(SHAPE, seed=3)
    alone = forest.alone(model)
    every = tuple(range(1, len(SHAPE)))
    for costs, cuts in (
        (CAUSAL, ()),
        (MASKED, ()),
        (COSTS, (4, 6, 8, 16)),
        (COSTS, every),
    ):
        assert np.abs(packed(forest, model, costs, cuts) - alone).max() < 2e-4, (costs, cuts)


def test_positions_reach_what_a_model_makes_of_them_itself() -> None:
    """Ministral scales queries by their position, from the 17th on here."""
    parameters = {
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 16,
    }
    model, forest = build("ministral3", rope_parameters=parameters), Forest.of(SHAPE)
    assert np.abs(packed(forest, model, COSTS, (4, 10)) - forest.alone(model)).max() < 2e-4


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3", "cohere2"])
def test_half_precision_stays_finite_and_near(name: str, dtype: mx.Dtype) -> None:
    model, forest = build(name), Forest.of(SHAPE)
    model.set_dtype(dtype)
    alone = forest.alone(model)
    spread = np.abs(alone).max()
    assert np.abs(packed(forest, model, COSTS, (4, 10)) - alone).max() < 0.05 * spread


@pytest.mark.parametrize("score_bytes", [1, 4 * 4 * 24 * 3, 4 * 4 * 24 * 24 * 3])
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_attention_in_parts_is_the_same(name: str, score_bytes: int) -> None:
    """Down to one query at a time."""
    model, forest = build(name), Forest.of(SHAPE)
    whole = packed(forest, model, COSTS)
    parts = packed(
        forest,
        model,
        COSTS,
        attend=partial(attend, kernel=partial(in_parts, score_bytes=score_bytes)),
    )
    assert np.abs(whole - parts).max() < 2e-5


def test_scores_are_never_larger_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = mx.fast.scaled_dot_product_attention

    def measured(q: mx.array, k: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        sizes.append(4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return real(q, k, *args, **kwargs)

    model, forest = build("llama"), Forest.of(SHAPE)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", measured)
    packed(forest, model, COSTS)
    assert max(sizes) > 10_000
    sizes.clear()
    packed(
        forest, model, COSTS, attend=partial(attend, kernel=partial(in_parts, score_bytes=10_000))
    )
    assert 1_000 < max(sizes) <= 10_000


def batch_of(model: Any) -> tuple[PackedBatch, list[Any]]:
    lengths, starts, parents = np.array([3, 2]), np.array([0, 3]), np.array([-1, 0])
    blocks = cut(lengths, starts, parents, [None, None], COSTS, num_kept=0)
    batch = PackedBatch(np.arange(5, dtype=np.int32), np.arange(5), blocks)
    return batch, batch.stand_ins(make_prompt_cache(model))


@pytest.mark.usefixtures("installed")
def test_attention_of_its_own_is_found_out() -> None:
    """gemma2 adds its mask itself, so the blocks never see its queries."""
    model: Any = build("gemma2")
    batch, caches = batch_of(model)
    with pytest.raises(NotPackable, match="mask itself"):
        model(batch.x, caches)


def test_without_the_wrapper_it_does_not_run() -> None:
    model: Any = build("llama")
    batch, caches = batch_of(model)
    with pytest.raises((TypeError, ValueError)):
        mx.eval(model(batch.x, caches))


def test_recurrent_states_have_no_stand_in() -> None:
    batch, _ = batch_of(build("llama"))
    for template in (make_prompt_cache(build("mamba")), [KVCache(), ChunkedKVCache(8)]):
        with pytest.raises(UnknownCache, match="no packed stand-in"):
            batch.stand_ins(template)


@pytest.mark.usefixtures("installed")
def test_what_cannot_be_packed_is_refused() -> None:
    batch, (layer, _) = batch_of(build("llama"))
    q = mx.zeros((5, 4, 1, 16))
    k = mx.zeros((5, 2, 1, 16))
    mask = layer.make_mask(1)
    call = base.scaled_dot_product_attention
    with pytest.raises(NotPackable, match="changes the mask"):
        call(q, k, k, cache=layer, scale=1.0, mask=mx.zeros((1, 1)))
    with pytest.raises(NotPackable, match="of shape"):
        call(q.swapaxes(0, 2), k, k, cache=layer, scale=1.0, mask=mask)
    with pytest.raises(NotPackable, match="without a cache"):
        call(q, k, k, cache=None, scale=1.0, mask=mask)
    with pytest.raises(NotPackable, match="did not use its cache"):
        batch.layer_rows()
    assert call(q, k, k, cache=layer, scale=1.0, mask=mask).shape == q.shape


def functions() -> dict[str, Any]:
    """What each loaded model module has under the name."""
    return {
        name: vars(module)[NAME]
        for name, module in sys.modules.items()
        if name.startswith("mlx_lm.models.") and NAME in vars(module)
    }


def test_the_wrapper_stands_while_someone_needs_it_and_leaves_no_trace() -> None:
    before = functions()
    original = base.scaled_dot_product_attention
    assert before["mlx_lm.models.llama"] is original
    own = SimpleNamespace(**{NAME: len})
    sys.modules["mlx_lm.models.of_its_own"] = own  # type: ignore[assignment]
    sys.modules.pop("mlx_lm.models.nemotron", None)
    try:
        attention.install()
        attention.install()
        late = importlib.import_module("mlx_lm.models.nemotron")
        for module in (base, llama, late):
            assert vars(module)[NAME] is attention.packed_attention
        assert getattr(own, NAME) is len
        attention.uninstall()
        assert vars(llama)[NAME] is attention.packed_attention
        attention.uninstall()
        assert getattr(own, NAME) is len
        assert vars(late)[NAME] is original
        assert {name: functions()[name] for name in before} == before
        with pytest.raises(RuntimeError, match="more often"):
            attention.uninstall()
        assert vars(llama)[NAME] is original
    finally:
        del sys.modules["mlx_lm.models.of_its_own"]


def test_other_caches_do_not_notice() -> None:
    model: Any = build("gpt-oss")
    tokens = mx.arange(20)[None]
    before = np.array(model(tokens)), np.array(model(tokens, make_prompt_cache(model)))
    attention.install()
    try:
        after = np.array(model(tokens)), np.array(model(tokens, make_prompt_cache(model)))
    finally:
        attention.uninstall()
    for a, b in zip(before, after, strict=True):
        assert np.array_equal(a, b)


# What all this relies on in mlx-lm. When one of these fails, read what changed before anything else.

NAME = "scaled_dot_product_attention"
MODELS = Path(base.__file__).parent
OWN_CALLS = {"base", "deepseek_v41", "muse_spark", "plamo2"}
"""Modules that call the kernel themselves."""


def test_the_function_is_as_we_know_it() -> None:
    parameters = inspect.signature(base.scaled_dot_product_attention).parameters
    assert list(parameters) == ["queries", "keys", "values", "cache", "scale", "mask", "sinks"]
    assert [p.name for p in parameters.values() if p.default is not p.empty] == ["sinks"]
    ours = inspect.signature(attention.packed_attention).parameters
    assert list(ours) == list(parameters)


def test_masks_are_asked_of_the_cache_as_we_know_it() -> None:
    asked: list[tuple[Any, ...]] = []

    class Cache:
        def make_mask(self, *args: Any, **kwargs: Any) -> str:
            asked.append((args, kwargs))
            return "ours"

    h = mx.zeros((5, 1, 8))
    assert base.create_attention_mask(h, Cache(), window_size=7) == "ours"
    assert base.create_attention_mask(h, Cache(), return_array=True) == "ours"
    assert asked == [
        ((1,), {"return_array": False, "window_size": 7}),
        ((1,), {"return_array": True, "window_size": None}),
    ]


def test_models_take_the_function_from_base_by_name() -> None:
    users: set[str] = set()
    own: set[str] = set()
    for path in MODELS.glob("*.py"):
        text = path.read_text()
        if "mx.fast." + NAME in text:
            own.add(path.stem)
        if re.search(rf"(?<![\w.]){NAME}\(", text) and path.stem != "base":
            users.add(path.stem)
            assert re.search(rf"from \.base import (\([^)]*)?[^)\n]*\b{NAME}\b", text), path.stem
    assert own == OWN_CALLS
    assert len(users) >= 90
    known = (
        "llama qwen2 qwen3 qwen3_moe gemma gemma3_text gemma4_text phi3 mixtral ministral3 gpt_oss"
    )
    assert users >= set(known.split())
