"""Tiny random models through the real thread: batched and padded equals each row alone."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.tuner.utils import linear_to_lora_layers
from numpy.typing import NDArray
from running import bare, with_engine
from tiny_models import CONFIGS, RECURRENT, VOCAB, build
from ways import LEFT_PADDED, PACKED_WAYS, Way

from mlxscore_server.check import self_check
from mlxscore_server.device import current
from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.scoring import BatchScorer
from mlxscore_server.settings import LayoutChoice

# Attention of their own, which no stand-in reaches, or a state: left-padded they are right.
UNPACKED = {"gemma2", "mamba2"}

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
        targets = row.ids[row.start :]
        logits = logits[row.start - 1 :][: len(targets)]
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        at = np.arange(len(targets))
        ranks = 1 + (logits > logits[at, targets][:, None]).sum(-1)
        answers.append((logprobs[at, targets], ranks))
    return answers


def sharing_rows(seed: int = 2) -> list[Row]:
    """Rows that begin alike at several depths, with short and long ends, all or some of it scored."""
    rng = np.random.default_rng(seed)

    def ids(length: int) -> NDArray[np.int32]:
        return rng.integers(0, VOCAB, length).astype(np.int32)

    preamble = ids(41)
    rows: list[Row] = []
    for question in (ids(23), ids(30), ids(40)):
        for choice in (ids(1), ids(1), ids(3), ids(6), ids(37)):
            whole = np.concatenate([preamble, question, choice])
            start = len(whole) - len(choice)
            rows.append(Row(whole, start, ranks=True, top_logprobs=3))
    rows.append(Row(rows[3].ids, 1))  # an echo of what others share
    rows.append(Row(preamble, 12, next_token=True))  # ends where others go on
    return rows


def score_together(
    make: Callable[[], nn.Module],
    rows: list[Row],
    ways: Sequence[Way] = (),
    choice: LayoutChoice = "auto",
) -> tuple[list[list[RowScore]], Reference, str]:
    """The rows' scores through engine, thread and queue: as the check at load left the scorer, and then
    twice in each way; the reference; the layout that was proved."""
    reference: Reference = []
    scorers: list[BatchScorer] = []
    layout: list[str] = []
    refused: list[str] = []

    def load() -> Loaded:
        model = make()
        # Before the head is split: this is the untouched model.
        reference.extend(alone(model, rows))
        scorer = BatchScorer(model, current(), max_batch_tokens=150)
        found = self_check(scorer, model, choice)
        layout.append(found.layout)
        if found.padding == "equal-length":
            refused.append("left-padded")
        scorers.append(scorer)
        return bare(scorer)

    async def use(engine: Engine) -> list[list[RowScore]]:
        found = [(await engine.score(rows)).scores]
        for way in ways:
            if way.layout in refused:
                continue
            way.set(scorers[0])
            # The second time is warm, where anything is kept.
            found += [(await engine.score(rows)).scores for _ in range(2)]
        return found

    return with_engine(load, use), reference, layout[0]


def assert_equal(scores: list[RowScore], reference: Reference, tolerance: float = 1e-4) -> None:
    for score, (logprobs, ranks) in zip(scores, reference, strict=True):
        given = slice(0, len(logprobs))  # a next token stands behind them
        assert np.abs(score.logprobs[given] - logprobs).max() <= tolerance
        assert score.greedy[given].tolist() == (ranks == 1).tolist()
        if score.ranks is not None:
            assert score.ranks.tolist() == ranks.tolist()


@pytest.mark.parametrize("name", PADDED)
def test_every_way_equals_alone(name: str) -> None:
    rows = [*random_rows(), *sharing_rows()]
    packed = name not in UNPACKED
    ways = [LEFT_PADDED, *(PACKED_WAYS if packed else [])]
    found, reference, layout = score_together(PADDED[name], rows, ways)
    assert layout == ("packed" if packed else "left-padded")
    for scores in found:
        assert_equal(scores, reference)


@pytest.mark.parametrize("name", ["mamba", "rwkv7"])
def test_models_that_do_not_heed_padding_fall_back_and_are_right(name: str) -> None:
    rows = random_rows()
    (scores,), reference, layout = score_together(of(name), rows)
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
    ways = [] if name in UNPACKED else [LEFT_PADDED, *PACKED_WAYS]
    found, reference, layout = score_together(make, rows, ways)
    assert layout == ("left-padded" if name in UNPACKED else "packed")
    for scores in found:
        for score, (logprobs, _) in zip(scores, reference, strict=True):
            assert np.abs(score.logprobs - logprobs).max() <= 0.1


def test_top_tokens_are_the_highest_and_hold_the_argmax() -> None:
    rows = random_rows()
    (scores,), _, _ = score_together(of("gemma2"), rows)
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
