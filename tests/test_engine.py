"""The engine's life: real thread and queue, a scorer with gates whose answers are known."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest
from fake_window import Batch, FakeWindow
from running import bare, with_engine

from mlxscore_server.engine import Engine, Scored
from mlxscore_server.errors import (
    EngineStopped,
    MlxscoreError,
    NonFiniteLogits,
    NotReady,
    QueueFull,
    ScoringFailed,
    StartupError,
)
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.settings import Settings
from mlxscore_server.stats import Stats

BOOM, NAN, DIE = 251, 252, 253


class KnownScorer:
    """A token's logprob is minus its id / 8. `hold()` keeps the next micro-batch in the model."""

    max_batch_tokens = 8
    overlaps = False

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.threads: set[int] = set()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.freed = 0
        self.stats = Stats()
        self.closed = False

    def hold(self) -> None:
        self.entered.clear()
        self.gate.clear()

    def plan(self, rows: Sequence[Row]) -> FakeWindow:
        return FakeWindow(rows, self.max_batch_tokens, self.score)

    def score(self, batch: Batch) -> list[RowScore | MlxscoreError]:
        self.threads.add(threading.get_ident())
        self.batches.append(batch)
        self.entered.set()
        self.gate.wait()
        ids = np.concatenate([row.ids for row in batch.rows])
        if DIE in ids:
            raise SystemExit("beyond what a micro-batch may raise")
        if BOOM in ids:
            raise RuntimeError("boom: internals")
        return [
            NonFiniteLogits("NaN")
            if NAN in row.ids
            else RowScore((-row.targets / 8).astype(np.float32), row.targets == 1)
            for row in batch.rows
        ]

    def free(self) -> None:
        self.freed += 1

    def lighten(self, max_batch_tokens: int) -> None:
        self.max_batch_tokens = max_batch_tokens

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True, params=[False, True], ids=["waits", "overlaps"])
def overlaps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test on a device that works by itself too: the next step is started before one is finished."""
    monkeypatch.setattr(KnownScorer, "overlaps", request.param)


def row(*ids: int) -> Row:
    return Row(np.array(ids, np.int32), 1)


def with_known(
    use: Callable[[Engine, KnownScorer], Awaitable[None]], **settings: int
) -> KnownScorer:
    scorer = KnownScorer()

    async def go(engine: Engine) -> None:
        try:
            await use(engine, scorer)
        finally:
            scorer.gate.set()

    with_engine(lambda: bare(scorer), go, **settings)
    assert scorer.closed
    return scorer


async def held(engine: Engine, scorer: KnownScorer, *rows: Row) -> "asyncio.Task[Scored]":
    """Start scoring and return when the model has it and does not let go."""
    scorer.hold()
    task = asyncio.create_task(engine.score(rows or [row(1, 2)]))
    await asyncio.to_thread(scorer.entered.wait)
    return task


def test_answers_are_in_order_and_equal_inputs_are_computed_once() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        rows = [row(1, 2, 3, 4, 5), row(1, 2), row(1, 2, 3, 4, 6), row(9, 8, 7)]
        scored = await engine.score(rows)
        assert [s.loglikelihood for s in scored.scores] == [-14 / 8, -2 / 8, -15 / 8, -15 / 8]
        assert scored.computed_tokens == 4 + 1 + 2
        assert (await engine.score([])).scores == []

    with_known(use)


def test_only_one_thread_ever_runs_the_model_and_it_is_not_the_loops() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        await asyncio.gather(*(engine.score([row(i, i + 1)]) for i in range(50)))

    scorer = with_known(use)
    assert len(scorer.threads) == 1
    assert threading.get_ident() not in scorer.threads


def test_what_waits_while_the_model_is_busy_runs_together() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        others = [asyncio.create_task(engine.score([row(3, i)])) for i in range(4)]
        await settled(engine, 4)
        scorer.gate.set()
        await asyncio.gather(first, *others)
        assert [len(batch.rows) for batch in scorer.batches] == [1, 4]

    with_known(use)


async def settled(engine: Engine, waiting_tokens: int) -> None:
    """Let tasks run until this many tokens wait."""
    while engine.waiting_tokens < waiting_tokens:
        await asyncio.sleep(0)


def test_a_caller_that_leaves_costs_its_unstarted_rows_nothing() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        leaver = asyncio.create_task(engine.score([row(7, i) for i in range(100)]))
        stayer = asyncio.create_task(engine.score([row(3, 4)]))
        await settled(engine, 101)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        assert engine.waiting_tokens == 1
        scorer.gate.set()
        await asyncio.gather(first, stayer)
        assert all(r.ids[0] != 7 for batch in scorer.batches for r in batch.rows)

    with_known(use)


def test_rows_already_in_a_window_are_dropped_too() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        # 4 micro-batches of one row each in one window; the caller leaves during the first.
        rows = [row(*range(i, i + 9)) for i in range(4)]
        task = await held(engine, scorer, *rows)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        scorer.gate.set()
        assert (await engine.score([row(1, 2)])).scores[0].loglikelihood == -0.25
        assert len(scorer.batches) == 2

    with_known(use)


def bulk(first: int, count: int) -> list[Row]:
    """Rows that fill a micro-batch each and share nothing."""
    return [row(first + i, *range(8)) for i in range(count)]


def test_a_small_newcomer_does_not_wait_for_the_rest_of_a_bulk_run() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer, *bulk(20, 40))
        small = asyncio.create_task(engine.score([row(1, 2)]))
        waiting = engine.waiting_tokens
        await settled(engine, waiting + 1)
        scorer.gate.set()
        await asyncio.gather(first, small)
        order = [batch.rows[0].ids[0] for batch in scorer.batches]
        assert len(order) == 41
        assert order.index(1) <= 3

    with_known(use)


def test_many_small_newcomers_do_not_starve_a_bulk_run() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer, *bulk(100, 12))
        smalls = [asyncio.create_task(engine.score([row(1, i), row(2, i)])) for i in range(20)]
        await settled(engine, engine.waiting_tokens + 40)
        scorer.gate.set()
        await asyncio.gather(first, *smalls)
        is_bulk = [batch.rows[0].ids[0] >= 100 for batch in scorer.batches]
        # In a window that has begun every second step is its own; of a new one all have their share.
        gaps = [len(list(run)) for whose, run in itertools.groupby(is_bulk) if not whose]
        assert max(gaps) <= 4

    with_known(use)


def test_two_bulk_runs_share_the_device() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        held_up = await held(engine, scorer)
        runs = [asyncio.create_task(engine.score(bulk(first, 8))) for first in (20, 120)]
        await settled(engine, 2 * 8 * 8)
        scorer.gate.set()
        await asyncio.gather(held_up, *runs)
        whose = [batch.rows[0].ids[0] >= 100 for batch in scorer.batches[1:]]
        # In each window of four micro-batches both have their half.
        assert [sum(whose[i : i + 4]) for i in range(0, 16, 4)] == [2, 2, 2, 2]

    with_known(use)


def test_an_error_reaches_the_micro_batchs_own_waiters_only() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        tasks = [
            asyncio.create_task(engine.score([row(1, BOOM)])),
            asyncio.create_task(engine.score([row(*range(9))])),
        ]
        await settled(engine, 9)
        scorer.gate.set()
        await first
        failed, fine = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(failed, ScoringFailed)
        assert "boom" not in failed.message
        assert isinstance(fine, Scored)
        assert (await engine.score([row(1, 2)])).scores

    with_known(use)


def test_a_row_without_a_finite_score_is_named_and_its_neighbours_are_scored() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        bad = asyncio.create_task(engine.score([row(1, 2), row(1, NAN)]))
        good = asyncio.create_task(engine.score([row(1, 3)]))
        await settled(engine, 3)
        scorer.gate.set()
        await first
        assert (await good).scores[0].loglikelihood == -3 / 8
        with pytest.raises(NonFiniteLogits) as caught:
            await bad
        assert caught.value.row == 1

    with_known(use)


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        waiting = asyncio.create_task(engine.score([row(*range(9))]))
        await settled(engine, 8)
        with pytest.raises(QueueFull, match="--max-queued-tokens") as caught:
            await engine.score([row(1, 2, 3, 4)])
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 1
        scorer.gate.set()
        await asyncio.gather(first, waiting)

    with_known(use, max_queued_tokens=10)


def test_the_threads_death_answers_everybody() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer, row(1, DIE), row(2, 3))
        queued = asyncio.create_task(engine.score([row(3, 4)]))
        await settled(engine, 1)
        scorer.gate.set()
        for task in (first, queued):
            with pytest.raises(EngineStopped):
                await task
        await engine.stopped.wait()
        assert engine.state == "failed"
        assert isinstance(engine.failure, SystemExit)
        with pytest.raises(EngineStopped):
            await engine.score([row(1, 2)])

    with_known(use)


def test_draining_finishes_what_is_queued_and_lets_nobody_in() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        queued = asyncio.create_task(engine.score([row(3, 4)]))
        await settled(engine, 1)
        draining = asyncio.create_task(engine.drain(60))
        await asyncio.sleep(0)
        assert engine.state == "draining"
        with pytest.raises(NotReady) as caught:
            await engine.score([row(1, 2)])
        assert caught.value.code == "draining"
        scorer.gate.set()
        await draining
        assert (await first).scores
        assert (await queued).scores

    with_known(use)


def test_what_outlasts_the_drain_gets_an_error() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        first = await held(engine, scorer)
        queued = asyncio.create_task(engine.score([row(3, 4)]))
        await settled(engine, 1)
        await engine.drain(0)
        closing = asyncio.create_task(engine.close())
        with pytest.raises(EngineStopped):
            await queued
        scorer.gate.set()
        await closing
        assert (await first).scores

    with_known(use)


def test_while_loading_callers_are_told_so_and_a_bad_model_is_reported() -> None:
    loading, gate = threading.Event(), threading.Event()

    def load() -> Loaded:
        loading.set()
        gate.wait()
        raise StartupError("no such model")

    async def main() -> None:
        engine = Engine(Settings(), load)
        engine.start()
        await asyncio.to_thread(loading.wait)
        assert engine.state == "loading"
        with pytest.raises(NotReady):
            await engine.score([row(1, 2)])
        gate.set()
        with pytest.raises(StartupError, match="no such model"):
            await engine.ready()
        assert engine.state == "failed"
        await engine.close()

    asyncio.run(main())


def test_closing_before_the_model_is_loaded_ends_the_thread() -> None:
    gate = threading.Event()
    scorer = KnownScorer()

    def load() -> Loaded:
        gate.wait()
        return bare(scorer)

    async def main() -> None:
        engine = Engine(Settings(), load)
        engine.start()
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
        assert scorer.closed
        assert engine.failure is None

    asyncio.run(main())


def test_encode_runs_off_the_loops_thread() -> None:
    async def use(engine: Engine, scorer: KnownScorer) -> None:
        assert await engine.encode(threading.get_ident) != threading.get_ident()

    with_known(use)
