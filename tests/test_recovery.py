"""The real scorer when its model fails now and then: every other row has its score, warm or cold."""

import asyncio
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from running import bare, with_engine
from tiny_models import VOCAB, build
from ways import LEFT_PADDED, Way

from mlxscore_server.device import current
from mlxscore_server.engine import Engine
from mlxscore_server.errors import NonFiniteLogits, ScoringFailed
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row
from mlxscore_server.scoring import BatchScorer

BAD = VOCAB - 1
"""The token with which the model raises."""


def failing(run: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    def guarded(tokens: Any, *args: Any, **kwargs: Any) -> Any:
        given = np.concatenate(tokens) if isinstance(tokens, list) else tokens
        if BAD in given:
            raise error
        return run(tokens, *args, **kwargs)

    return guarded


def requests() -> list[list[Row]]:
    """Siblings after a preamble, many requests of one to three rows; every seventh has a bad row."""
    rng = np.random.default_rng(0)
    preamble = rng.integers(0, BAD, 30)
    made: list[list[Row]] = []
    for i in range(40):
        rows = [
            np.concatenate([preamble, rng.integers(0, BAD, rng.integers(3, 20))])
            for _ in range(1 + i % 3)
        ]
        if not i % 7:
            rows[-1][-2] = BAD
        made.append([Row(ids.astype(np.int32), 25) for ids in rows])
    return made


@pytest.mark.parametrize(
    "way",
    [LEFT_PADDED, Way(), Way(max_batch_tokens=40), Way(max_batch_tokens=16, kept_bytes=20_000)],
    ids=["left-padded", "packed", "small", "chained"],
)
def test_only_bad_rows_fail(way: Way) -> None:
    scorers: list[BatchScorer] = []

    def load() -> Loaded:
        scorer = BatchScorer(build("llama"), current())
        way.set(scorer)
        scorers.append(scorer)
        return bare(scorer)

    async def use(engine: Engine) -> None:
        asked = requests()
        expected = [await engine.score(rows) for rows in asked]
        scorer = scorers[0]
        for name in ("packed", "padded"):
            run = getattr(scorer.forward, name)
            setattr(scorer.forward, name, failing(run, RuntimeError("boom")))
        scorer.kept.clear()
        for _ in range(2):  # and from what survived
            found = await asyncio.gather(
                *(engine.score(rows) for rows in asked), return_exceptions=True
            )
            for rows, right, one in zip(asked, expected, found, strict=True):
                bad = [i for i, row in enumerate(rows) if BAD in row.inputs]
                if bad:
                    assert isinstance(one, ScoringFailed)
                    assert one.row == bad[0]
                    continue
                assert not isinstance(one, BaseException)
                for score, wanted in zip(one.scores, right.scores, strict=True):
                    assert np.abs(score.logprobs - wanted.logprobs).max() < 1e-4
        assert engine.waiting_tokens == 0
        # Nothing is held for windows that are over.
        scorer.kept.clear()
        assert scorer.kept.bytes == scorer.kept.num_entries == 0

    with_engine(load, use)


def spoiled() -> BatchScorer:
    """What reads the token BAD is NaN from there on."""
    model = build("llama-untied")
    embed: Any = model.model.embed_tokens  # pyright: ignore[reportAttributeAccessIssue]
    is_bad = mx.arange(VOCAB)[:, None] == BAD
    embed.weight = mx.where(is_bad, mx.array(float("nan")), embed.weight)
    return BatchScorer(model, current())


@pytest.mark.parametrize(
    "way", [LEFT_PADDED, Way(), Way(max_batch_tokens=16)], ids=["left-padded", "packed", "chained"]
)
def test_a_row_without_a_number_spoils_no_other_and_nothing_of_it_is_kept(way: Way) -> None:
    scorers: list[BatchScorer] = []

    def load() -> Loaded:
        scorers.append(spoiled())
        way.set(scorers[0])
        return bare(scorers[0])

    async def use(engine: Engine) -> None:
        kept = scorers[0].kept
        asked = requests()
        for _ in range(2):  # and from what is kept
            found = await asyncio.gather(
                *(engine.score(rows) for rows in asked), return_exceptions=True
            )
            for rows, one in zip(asked, found, strict=True):
                bad = [i for i, row in enumerate(rows) if BAD in row.inputs]
                if bad:
                    assert isinstance(one, NonFiniteLogits)
                    assert one.row == bad[0]
                else:
                    assert not isinstance(one, BaseException)
        for rows in asked:
            for row in rows:
                path = kept.walk(kept.root(row.salt), row.inputs)
                assert BAD not in row.inputs[: path.depth]

    with_engine(load, use)


def test_what_is_kept_and_has_become_no_number_is_computed_anew() -> None:
    scorer = BatchScorer(build("llama"), current())
    Way().set(scorer)
    kept = scorer.kept
    rng = np.random.default_rng(2)
    row = Row(rng.integers(0, BAD, 40).astype(np.int32), 30)
    longer = Row(np.append(row.ids, row.ids[:5]), 35)

    async def use(engine: Engine) -> None:
        right = (await engine.score([row, longer])).scores
        for slab in kept._slabs.values():
            slab.values[:] = [value * float("nan") for value in slab.values]
        even_longer = Row(np.append(longer.ids, row.ids[:3]), 35)
        for asked in ([even_longer], [even_longer, longer], [row]):
            found = (await engine.score(asked)).scores
            assert all(np.isfinite(score.logprobs).all() for score in found)
        assert (
            np.abs((await engine.score([row])).scores[0].logprobs - right[0].logprobs).max() < 1e-4
        )

    with_engine(lambda: bare(scorer), use)


def test_memory_that_runs_out_once_is_given_back_and_less_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scorer = BatchScorer(build("llama"), current(), max_batch_tokens=1024, kept_bytes=2**26)
    scorer.layout = "packed"
    forward: Any = scorer.forward
    run, limit = forward.packed, 600
    freed: list[int] = []

    def short(tokens: Any, *args: Any) -> Any:
        if len(tokens) > limit:
            freed.append(scorer.kept.num_entries)
            raise RuntimeError("[metal::malloc] Resource limit (499000) exceeded.")
        return run(tokens, *args)

    rng = np.random.default_rng(1)
    rows = [Row(rng.integers(0, BAD, 40).astype(np.int32), 20) for _ in range(60)]

    async def use(engine: Engine) -> None:
        alone = [(await engine.score([row])).scores[0] for row in rows[:3]]
        assert scorer.kept.num_entries
        forward.packed = short
        together = (await engine.score(rows)).scores
        for one, other in zip(alone, together, strict=False):
            assert np.abs(one.logprobs - other.logprobs).max() < 1e-4
        assert len(freed) == 1
        assert 300 < scorer.max_batch_tokens <= 512  # half of what did not fit
        assert scorer.kept.max_bytes == 2**25

    with_engine(lambda: bare(scorer), use)
    assert "tokens from now on, not 1024; caches were dropped" in caplog.text
