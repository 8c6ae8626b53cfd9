"""The engine through any life: submit, leave, fail, hold, release, drain, die, in any order.

The real thread and queue; the model lets through as many micro-batches as it is told to. Whatever
comes, each request ends in one answer, its own, and nothing of it stays behind.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from fake_window import Batch, FakeWindow
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from running import bare, with_engine
from steady_model import logprobs

from mlxscore_server.engine import Engine, Scored
from mlxscore_server.errors import (
    EngineStopped,
    MlxscoreError,
    NonFiniteLogits,
    NotReady,
    QueueFull,
    ScoringFailed,
)
from mlxscore_server.row import Row, RowScore
from mlxscore_server.settings import Settings
from mlxscore_server.stats import Stats

T = TypeVar("T")

RAISE, NAN, DIE = 301, 302, 303
"""Ids that make the model raise, answer with NaN, and end its thread."""
MAX_QUEUED = 60
PATIENCE = 10  # seconds, for what takes milliseconds

texts = st.lists(st.integers(0, 3), min_size=1, max_size=12)
requests = st.lists(texts, min_size=1, max_size=4)


class GatedScorer:
    """Runs as many micro-batches as `let` allows, then holds until it allows more."""

    max_batch_tokens = 8

    def __init__(self, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.runs = 0
        self.stats = Stats()
        self._gate = threading.Semaphore(0)
        self._open = False

    def let(self, batches: int) -> None:
        self._gate.release(batches)

    def open(self) -> None:
        self._open = True
        self._gate.release()

    def plan(self, rows: Sequence[Row]) -> FakeWindow:
        return FakeWindow(rows, self.max_batch_tokens, self._score)

    def _score(self, batch: Batch) -> list[RowScore | MlxscoreError]:
        if not self._open:
            self._gate.acquire()
        self.runs += 1
        ids = {token for row in batch.rows for token in row.ids.tolist()}
        if DIE in ids:
            raise SystemExit("beyond what a micro-batch may raise")
        if RAISE in ids:
            raise RuntimeError("boom")
        return [self._answer(row) for row in batch.rows]

    def _answer(self, row: Row) -> RowScore | MlxscoreError:
        if NAN in row.ids:
            return NonFiniteLogits("NaN")
        known = np.array(logprobs(row.ids.tolist(), row.start), np.float32)
        return RowScore(known, np.zeros(len(known), np.bool_))

    def free(self) -> None:
        pass

    def lighten(self, max_batch_tokens: int) -> None:
        raise AssertionError("nobody ran out of memory")

    def close(self) -> None:
        pass


class Life(RuleBasedStateMachine):
    @initialize(overlaps=st.booleans(), way_out=st.sampled_from(["close", "drain", "die"]))
    def start(self, overlaps: bool, way_out: str) -> None:
        self.way_out = way_out
        self.loop = asyncio.new_event_loop()
        self.scorer = GatedScorer(overlaps)
        self.engine = Engine(Settings(max_queued_tokens=MAX_QUEUED), lambda: bare(self.scorer))
        self.waiting: dict[asyncio.Task[Scored], list[Row]] = {}
        self.left: list[asyncio.Task[Scored]] = []
        self.draining: asyncio.Task[None] | None = None
        self.dying = False
        self.count = 0
        self.run(self._start())

    async def _start(self) -> None:
        self.engine.start()
        await self.engine.ready()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Bounded: an answer that never comes is to fail here, not to stop all tests."""

        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE):
                return await work

        return self.loop.run_until_complete(bounded())

    async def settle(self) -> None:
        """Let tasks run up to where they wait."""
        for _ in range(5):
            await asyncio.sleep(0)

    def submit(self, parts: list[list[int]]) -> None:
        self.count += 1
        # What no other request begins with: each has answers that are its own.
        rows = [Row(np.array([self.count, *part], np.int32), 1) for part in parts]
        self.waiting[self.loop.create_task(self.engine.score(rows))] = rows
        self.run(self.settle())

    @rule(parts=requests)
    def good(self, parts: list[list[int]]) -> None:
        self.submit(parts)

    @rule(parts=requests, bad=st.sampled_from([RAISE, NAN]), place=st.integers(0, 3))
    def bad(self, parts: list[list[int]], bad: int, place: int) -> None:
        parts[place % len(parts)].append(bad)
        self.submit(parts)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        task = list(self.waiting)[which % len(self.waiting)]
        del self.waiting[task]
        self.left.append(task)
        task.cancel()
        self.run(self.settle())

    @rule(batches=st.integers(1, 4))
    def let(self, batches: int) -> None:
        """So many micro-batches run, or all that there are."""
        upto = self.scorer.runs + batches
        self.scorer.let(batches)

        async def ran() -> None:
            while self.scorer.runs < upto and not all(task.done() for task in self.waiting):
                await asyncio.sleep(0)

        self.run(ran())

    @rule()
    def everything_so_far(self) -> None:
        self.scorer.let(1000)
        self.run(self._answers())

    @precondition(lambda self: self.way_out == "drain" and self.count >= 8)
    @rule()
    def drain(self) -> None:
        self.draining = self.draining or self.loop.create_task(self.engine.drain(60))
        self.run(self.settle())

    @precondition(lambda self: self.way_out == "die" and self.count >= 8)
    @rule()
    def die(self) -> None:
        self.dying = True
        self.submit([[1, DIE]])

    async def _answers(self) -> None:
        """All who wait have their answer, and it is theirs."""
        await asyncio.gather(*self.waiting, *self.left, return_exceptions=True)
        for task, rows in self.waiting.items():
            self._check(task, rows)
        self.waiting.clear()
        # One who left after the answer had come has that; the others none.
        assert all(task.cancelled() or task.exception() or task.result() for task in self.left)

    def _check(self, task: "asyncio.Task[Scored]", rows: list[Row]) -> None:
        error = task.exception()
        ids = {token for row in rows for token in row.ids.tolist()}
        if error is None:
            assert not ids & {RAISE, NAN, DIE}
            found = [score.logprobs.tolist() for score in task.result().scores]
            assert found == [logprobs(row.ids.tolist(), row.start) for row in rows]
        elif isinstance(error, QueueFull | NotReady):
            # Refused at once; nothing of it ran.
            assert isinstance(error, QueueFull) or self.draining
            assert error.retry_after
        elif isinstance(error, EngineStopped):
            assert self.dying
        else:
            assert isinstance(error, ScoringFailed)
            # Its own fault, and the row that is named is the one.
            assert error.row is not None
            assert (NAN if isinstance(error, NonFiniteLogits) else RAISE) in rows[error.row].ids

    def teardown(self) -> None:
        self.scorer.open()

        async def end() -> None:
            await self._answers()
            if not self.dying:
                assert self.engine.failure is None
            if self.draining:
                await self.draining
                assert self.engine.stopped.is_set()
            # What leavers had in the queue is gone too.
            assert self.engine.waiting_tokens == 0

        async def close() -> None:
            await self.engine.close()
            await self.settle()
            assert len(asyncio.all_tasks()) == 1

        try:
            try:
                self.run(end())
            finally:
                self.run(close())
        finally:
            self.loop.close()


class HastyScorer(GatedScorer):
    """Raises without waiting to be let."""

    def _score(self, batch: Batch) -> list[RowScore | MlxscoreError]:
        if any(RAISE in row.ids for row in batch.rows):
            raise RuntimeError("boom")
        return super()._score(batch)


def test_a_failed_request_gives_its_place_back_at_once() -> None:
    """While another's row of the same window still runs, and the thread takes nothing from the queue."""
    scorer = HastyScorer(overlaps=False)

    def row(*ids: int) -> Row:
        return Row(np.array([*ids, 0], np.int32), 1)

    async def use(engine: Engine) -> None:
        first = asyncio.create_task(engine.score([row(1)]))
        await asyncio.sleep(0)
        await waiting(engine, 0)  # it is at the gate
        failing = asyncio.create_task(
            engine.score([row(2, RAISE), *(row(4, i, *range(6)) for i in range(20))])
        )
        await waiting(engine, 2 + 20 * 8)
        other = asyncio.create_task(engine.score([row(3, 3)]))
        await waiting(engine, 2 + 20 * 8 + 2)
        scorer.let(1)  # the first; the other's is in the failing one's window, and not let
        try:
            with pytest.raises(ScoringFailed):
                await failing
            assert not other.done()
            assert engine.waiting_tokens == 0
        finally:
            scorer.open()
            scorer.let(1000)
        await asyncio.gather(first, other)

    async def waiting(engine: Engine, tokens: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while engine.waiting_tokens != tokens:
                await asyncio.sleep(0)

    with_engine(lambda: bare(scorer), use)


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
