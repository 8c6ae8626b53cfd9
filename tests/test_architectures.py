"""Tiny random models through the real thread: batched and padded equals each row alone."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.tuner.utils import linear_to_lora_layers
from numpy.typing import NDArray
from running import bare, with_engine
from tiny_models import CONFIGS, RECURRENT, VOCAB, build

from mlxscore_server.check import self_check
from mlxscore_server.device import current
from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.scoring import BatchScorer

Reference = list[tuple[NDArray[np.float64], NDArray[np.int64]]]


def quantized() -> nn.Module:
    model = build("llama")
    nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    return model


def adapted(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = build(name)
        keys = ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"]
        config = {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": keys}
        linear_to_lora_layers(model, 2, config)
        if "lm_head" in model:
            from mlx_lm.tuner.lora import LoRALinear

            model.lm_head = LoRALinear.from_base(model.lm_head, r=4, scale=2.0)
        mx.random.seed(7)
        # lora_b begins as zeros, with which an adapter that is left out would not show.
        for _, module in model.named_modules():
            if "lora_b" in module:
                module.lora_b = mx.random.normal(module.lora_b.shape)
        model.eval()
        mx.eval(model.parameters())
        return model

    return make


def of(name: str) -> Callable[[], nn.Module]:
    return lambda: build(name)


PADDED: dict[str, Callable[[], nn.Module]] = {
    **{name: of(name) for name in CONFIGS},
    "mamba2": of("mamba2"),
    "quantized": quantized,
    "lora": adapted("llama"),
    "lora-on-the-head": adapted("llama-untied"),
}


def random_rows(seed: int = 1) -> list[Row]:
    """Rows of many lengths, some beyond the tiny models' windows, some with equal inputs."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for length in (2, 3, 5, 8, 9, 10, 17, 24, 40, 40, 64):
        ids = rng.integers(0, VOCAB, length).astype(np.int32)
        rows.append(Row(ids, int(rng.integers(1, length)), ranks=True, top_logprobs=5))
    same = rows[5].ids.copy()
    same[-1] = (same[-1] + 1) % VOCAB
    return [*rows, Row(same, len(same) - 1), rows[0]]


def alone(model: nn.Module, rows: Sequence[Row]) -> Reference:
    """Through the model's own call, one unpadded row at a time, full logits, float64 log-softmax."""
    answers: Reference = []
    for row in rows:
        logits = np.array(model(mx.array(row.inputs)[None])[0].astype(mx.float32), np.float64)
        logits = logits[row.start - 1 :]
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        target = logits[np.arange(len(logits)), row.targets]
        ranks = 1 + (logits > target[:, None]).sum(-1)
        answers.append((logprobs[np.arange(len(logits)), row.targets], ranks))
    return answers


def score_together(
    make: Callable[[], nn.Module], rows: list[Row], **settings: Any
) -> tuple[list[RowScore], Reference, str]:
    """The rows' scores through engine, thread and queue; the reference; the layout that was proved."""
    reference: Reference = []
    layout: list[str] = []

    def load() -> Loaded:
        model = make()
        # Before the head is split: this is the untouched model.
        reference.extend(alone(model, rows))
        scorer = BatchScorer(model, current(), max_batch_tokens=150)
        layout.append(self_check(scorer, model).padding)
        return bare(scorer)

    async def use(engine: Engine) -> list[RowScore]:
        return (await engine.score(rows)).scores

    return with_engine(load, use, **settings), reference, layout[0]


def assert_equal(scores: list[RowScore], reference: Reference, tolerance: float = 1e-4) -> None:
    for score, (logprobs, ranks) in zip(scores, reference, strict=True):
        assert np.abs(score.logprobs - logprobs).max() <= tolerance
        assert score.greedy.tolist() == (ranks == 1).tolist()
        if score.ranks is not None:
            assert score.ranks.tolist() == ranks.tolist()


@pytest.mark.parametrize("name", PADDED)
def test_padded_equals_alone(name: str) -> None:
    rows = random_rows()
    scores, reference, layout = score_together(PADDED[name], rows)
    assert layout == "left-padded"
    assert_equal(scores, reference)


@pytest.mark.parametrize("name", ["mamba", "rwkv7"])
def test_models_that_do_not_heed_padding_fall_back_and_are_right(name: str) -> None:
    rows = random_rows()
    scores, reference, layout = score_together(of(name), rows)
    assert layout == "equal-length"
    assert_equal(scores, reference)


def test_every_recurrent_model_is_covered() -> None:
    assert set(RECURRENT) == {"mamba", "rwkv7", "mamba2"}


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba2"])
def test_half_precision_stays_finite_and_near(name: str, dtype: mx.Dtype) -> None:
    """Lengths 1 to 64 in one batch: the mask's value must exist in the dtype (float16 ends at 65504)."""

    def make() -> nn.Module:
        model = build(name)
        model.set_dtype(dtype)
        return model

    rows = random_rows()
    scores, reference, layout = score_together(make, rows)
    assert layout == "left-padded"
    for score, (logprobs, _) in zip(scores, reference, strict=True):
        assert np.abs(score.logprobs - logprobs).max() <= 0.1


def test_top_tokens_are_the_highest_and_hold_the_argmax() -> None:
    rows = random_rows()
    scores, _, _ = score_together(of("gemma2"), rows)
    for row, score in zip(rows, scores, strict=True):
        if not row.top_logprobs:
            assert score.top_ids is None
            continue
        assert score.top_ids is not None
        assert score.top_logprobs is not None
        assert score.top_ids.shape == (row.num_targets, 5)
        assert (np.diff(score.top_logprobs, axis=1) <= 0).all()
        assert (score.greedy == (score.top_ids[:, 0] == row.targets)).all()
        assert score.ranks is not None
        at_rank = (score.top_ids == row.targets[:, None]).argmax(1)
        inside = score.ranks <= 5
        assert (at_rank[inside] + 1 == score.ranks[inside]).all()
        value = score.top_logprobs[np.arange(row.num_targets), at_rank]
        assert (value[inside] == score.logprobs[inside]).all()
