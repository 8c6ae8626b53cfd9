"""The scorer: chunks of the head, whole logits, non-finite rows, memory. On the main thread, except
where a model with recurrent or rope state would mind."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tiny_models import VOCAB, build

from mlxscore_server.check import self_check
from mlxscore_server.device import current
from mlxscore_server.errors import NonFiniteLogits, StartupError
from mlxscore_server.fingerprint import fingerprint
from mlxscore_server.row import Row, RowScore
from mlxscore_server.scoring import BatchScorer


def rows_of(*lengths: int, seed: int = 0, **options: Any) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [Row(rng.integers(0, VOCAB, n).astype(np.int32), 1, **options) for n in lengths]


def values(scorer: BatchScorer, rows: list[Row]) -> np.ndarray[Any, np.dtype[np.float32]]:
    scores = scorer.score_rows(rows)
    return np.concatenate([s.logprobs for s in scores if isinstance(s, RowScore)])


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])
@pytest.mark.parametrize("chunk", [1, 7, 30, 10_000])
def test_the_heads_chunks_do_not_show(name: str, chunk: int) -> None:
    rows = rows_of(9, 14, 20, ranks=True, top_logprobs=3)
    scorer = BatchScorer(build(name), current())
    scorer.forward.mask_form = "additive-5d" if name == "gemma2" else "additive"
    whole = scorer.score_rows(rows)
    scorer.forward.chunk = chunk
    parts = scorer.score_rows(rows)
    for a, b in zip(whole, parts, strict=True):
        assert isinstance(a, RowScore)
        assert isinstance(b, RowScore)
        assert np.abs(a.logprobs - b.logprobs).max() < 1e-5
        assert a.ranks is not None
        assert a.top_ids is not None
        assert (a.ranks == b.ranks).all()
        assert (a.top_ids == b.top_ids).all()


def test_only_wanted_rows_reach_the_head() -> None:
    model = build("llama")
    seen: list[tuple[int, ...]] = []
    embed: Any = model.model.embed_tokens  # pyright: ignore[reportAttributeAccessIssue]
    scorer = BatchScorer(model, current())
    project = scorer.head._project  # pyright: ignore[reportPrivateUsage]

    def counted(module: nn.Module, x: mx.array) -> mx.array:
        seen.append(tuple(x.shape))
        return project(module, x)

    scorer.head._project = counted  # pyright: ignore[reportPrivateUsage]
    question = rows_of(30)[0].ids
    rows = [Row(np.append(question, i).astype(np.int32), 30) for i in range(4)]
    scorer.score_rows(rows)
    assert seen == [(1, 1, embed.weight.shape[1])]


def test_what_was_done_is_counted_once_it_is_done() -> None:
    scorer = BatchScorer(build("llama"), current(), layout="packed", kept_bytes=2**24)
    rows = rows_of(40, 40)
    rows[1] = Row(np.append(rows[0].ids[:30], rows[1].ids[30:]).astype(np.int32), 35)
    scorer.plan(rows).close()  # nothing was started
    assert scorer.stats.windows == scorer.stats.flat_tokens == scorer.stats.computed_tokens == 0
    scorer.score_rows(rows)
    flat = sum(row.num_inputs for row in rows)
    shared = 30
    stats = scorer.stats
    assert (stats.windows, stats.micro_batches, stats.cached_tokens) == (1, 1, 0)
    assert stats.computed_tokens == stats.padded_tokens == flat - shared
    scorer.score_rows(rows)
    assert (stats.windows, stats.flat_tokens) == (2, 2 * flat)
    assert stats.computed_tokens + stats.cached_tokens >= 2 * flat - shared
    assert stats.cached_tokens > shared


class NoProjection(nn.Module):
    """Its logits come from no module of its own: a bare product with the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("llama").model  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        return self.inner(inputs, cache) @ self.inner.embed_tokens.weight.T

    @property
    def layers(self) -> Any:
        return self.inner.layers


def test_a_model_whose_head_is_no_module_is_scored_through_whole_logits() -> None:
    scorer = BatchScorer(NoProjection(), current())
    assert not scorer.head.found
    assert self_check(scorer, NoProjection(), "auto").layout == "left-padded"
    rows = rows_of(5, 12)
    same = BatchScorer(build("llama"), current())
    assert np.abs(values(scorer, rows) - values(same, rows)).max() < 1e-5


class Unfaithful(nn.Module):
    """Its answers depend on the size of the batch: nothing that it says can be trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("llama")

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        return self.inner((inputs + (inputs.shape[0] > 1)) % VOCAB, cache)

    @property
    def layers(self) -> Any:
        return self.inner.layers  # pyright: ignore[reportAttributeAccessIssue]


def test_a_model_that_fails_even_in_equal_rows_is_refused() -> None:
    model = Unfaithful()
    with pytest.raises(StartupError, match="cannot be trusted"):
        self_check(BatchScorer(model, current()), model, "auto")


def test_the_head_is_given_back() -> None:
    model = build("llama-untied")
    before = type(model.lm_head)
    scorer = BatchScorer(model, current())
    assert type(model.lm_head) is not before
    scorer.head.close()
    assert type(model.lm_head) is before


def test_a_nan_row_is_an_error_and_its_neighbours_are_not() -> None:
    model = build("llama")
    embed: Any = model.model.embed_tokens  # pyright: ignore[reportAttributeAccessIssue]
    scorer = BatchScorer(model, current())
    good, bad = rows_of(6, 9)
    good = Row(np.clip(good.ids, 0, VOCAB - 2), 1)
    bad = Row(np.append(VOCAB - 1, bad.ids).astype(np.int32), 1)
    alone = values(scorer, [good])
    # The tied table makes the whole vocabulary's last logit NaN; so only its input side is spoiled.
    embed.weight = mx.where(
        mx.arange(VOCAB)[:, None] == VOCAB - 1, mx.array(float("nan")), embed.weight
    )
    untied = build("llama-untied")
    untied.model.embed_tokens.weight = embed.weight  # pyright: ignore[reportAttributeAccessIssue]
    spoiled = BatchScorer(untied, current())
    fine, error = spoiled.score_rows([good, bad])
    assert isinstance(fine, RowScore)
    assert np.isfinite(fine.logprobs).all()
    assert isinstance(error, NonFiniteLogits)
    assert np.isfinite(alone).all()


def test_the_bound_of_ids_is_the_embeddings_rows() -> None:
    assert BatchScorer(build("llama"), current()).head.num_embeddings == VOCAB
    assert (
        BatchScorer(build("gpt2"), current()).head.num_embeddings == VOCAB
    )  # not its 128 positions


def test_another_checkpoint_has_another_fingerprint() -> None:
    def of(seed: int) -> str:
        return fingerprint(
            build("llama", seed=seed), dtype="float32", head_dtype="float32", device="cpu"
        )

    assert of(0) == of(0)
    assert of(0) != of(1)
    assert "float32" in of(0)
    assert mx.__version__ in of(0)


def test_logits_memory_does_not_grow_with_the_positions() -> None:
    """64 rows x 512 over a 49k vocabulary, every position wanted: naive would be 6.4 GB of logits."""
    model = build("llama", vocab_size=49_152, hidden_size=32, num_hidden_layers=1, head_dim=8)
    scorer = BatchScorer(model, current(), max_batch_tokens=8192)
    rng = np.random.default_rng(0)
    rows = [Row(rng.integers(0, 49_152, 513).astype(np.int32), 481) for _ in range(64)]
    weights = mx.get_active_memory()
    mx.reset_peak_memory()
    assert all(isinstance(answer, RowScore) for answer in scorer.score_rows(rows))
    assert mx.get_peak_memory() - weights <= 2**30
