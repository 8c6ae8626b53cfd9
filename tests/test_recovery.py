"""The real scorer when its model fails now and then: every other row has its score, warm or cold."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from running import bare, with_engine
from tiny_models import VOCAB, build
from ways import LEFT_PADDED, Way

from mlxscore_server.device import current
from mlxscore_server.engine import Engine
from mlxscore_server.errors import ScoringFailed
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
