"""asyncio in front, one MLX thread behind: life cycle, health. Knows no HTTP and no MLX call.

Only the thread named "mlx" loads the model and runs it (MLX's streams belong to a thread); only
plain numpy leaves it.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from mlxscore_client import wire
from mlxscore_server.errors import EngineStopped, NotReady
from mlxscore_server.pulse import Pulse
from mlxscore_server.queue import Job, ScoreQueue
from mlxscore_server.resident import Loaded
from mlxscore_server.room import Room
from mlxscore_server.row import Row, RowScore
from mlxscore_server.runner import Runner
from mlxscore_server.settings import Settings
from mlxscore_server.stats import Stats
from mlxscore_server.timing import Span, current
from mlxscore_server.watchdog import Watchdog

log = logging.getLogger("mlxscore")

T = TypeVar("T")

# A job of so many rows takes milliseconds to count: not on the event loop.
_MANY_ROWS = 2000


@dataclass(frozen=True)
class Scored:
    """The answer to one call of `Engine.score`."""

    scores: list[RowScore]
    computed_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Line:
    """Who is being scored or waits for it."""

    requests: int
    """All of them, ..."""
    waiting: int
    """... and those with rows that have not been taken."""
    waiting_tokens: int
    oldest: float
    """Seconds since the first of those that wait came; 0 where nobody waits."""


class Engine:
    """Groups rows of all callers into micro-batches and runs them on the one MLX thread."""

    def __init__(self, settings: Settings, load: Callable[[], Loaded]) -> None:
        self._load = load
        self._queue = ScoreQueue(settings.max_queued_tokens)
        self.room = Room(self._queue, settings.max_queued_requests, self._rate)
        # Tokenising holds no MLX; two threads keep one huge text from blocking all others.
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="encode")
        # And short texts have threads of their own, so that two huge ones do not either.
        self._short_pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="encode-short")
        # Not a daemon: the interpreter must not tear MLX down under a running thread.
        self._thread = threading.Thread(target=self._main, name="mlx", daemon=False)
        self._loaded: Loaded | None = None
        self.draining = asyncio.Event()
        """Set when no new work is let in any more."""
        self._aborting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()
        self._runner: Runner | None = None
        self._waiting: dict[Job, asyncio.Future[Scored]] = {}
        self._patient: list[asyncio.Future[None]] = []
        self._watchdog = Watchdog(settings.hang_timeout, self._pulse, self._on_hang)
        self._hangs = False
        self.stopped = asyncio.Event()
        """Set when the MLX thread has ended, for whatever reason, or hangs."""
        self.failure: BaseException | None = None
        """Why the MLX thread ended, if it was not told to."""

    # --- the asyncio side ---

    def start(self) -> None:
        """Start the MLX thread, which loads the model. Call in a running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def state(self) -> wire.HealthState:
        if self.failure is not None or (self._thread.ident and not self._thread.is_alive()):
            return "draining" if self.draining.is_set() and self.failure is None else "failed"
        if self.draining.is_set():
            return "draining"
        return "ok" if self._loaded is not None else "loading"

    @property
    def loaded(self) -> Loaded:
        """The model; raises NotReady while it loads."""
        if self._loaded is None:
            raise NotReady("the model is loading; try again shortly", code="loading")
        return self._loaded

    @property
    def waiting_tokens(self) -> int:
        """Tokens queued and not yet taken."""
        return self._queue.tokens

    @property
    def line(self) -> Line:
        """Who waits now. Read it on the event loop."""
        waiting = [job.asked_at for job in self._waiting if job.waits]
        oldest = time.monotonic() - waiting[0] if waiting else 0.0
        return Line(len(self._waiting), len(waiting), self._queue.tokens, oldest)

    @property
    def stats(self) -> Stats | None:
        """What the model has done, once it is loaded."""
        return None if self._loaded is None else self._loaded.scorer.stats

    async def ready(self) -> None:
        """Return when the model is loaded; raise what went wrong if it cannot be."""
        await self._ready.wait()
        if self._loaded is None:
            raise self.failure or EngineStopped("the engine was closed while the model was loading")

    async def encode(self, fn: Callable[..., T], *args: object, short: bool = False) -> T:
        """Run `fn` on a small thread pool: tokenising and other work that would stall the loop.

        `short`: on another one, for what takes milliseconds and must not wait for what takes seconds.
        """
        if self._aborting:
            raise EngineStopped("the server is shutting down")
        pool = self._short_pool if short else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, fn, *args)

    async def score(
        self,
        rows: Sequence[Row],
        *,
        caller: Hashable = None,
        low: bool = False,
        patient: bool = False,
    ) -> Scored:
        """Score rows; the answers in order. Cancel the await to leave: unstarted rows never run.

        Callers have equal shares of the model; what is `low` gets what others leave; who is `patient`
        waits where the queue is full. Raises NotReady (loading, draining), QueueFull, EngineStopped,
        ScoringFailed.
        """
        self._check_ready()
        if not rows:
            return Scored([], 0, 0)
        future: asyncio.Future[Scored] = asyncio.get_running_loop().create_future()

        def make() -> Job:
            return Job(
                rows, lambda job: self._on_loop(_resolve, future, job), caller=caller, low=low
            )

        job = make() if len(rows) < _MANY_ROWS else await self.encode(make)
        while not self._queue.put(job):
            # The queue closes for good only when the thread ends or drains.
            self._check_ready()
            if not patient:
                raise self.room.refused(job)
            await self._next_end()
        self._waiting[job] = future
        self._watchdog.enter()
        try:
            return await future
        finally:
            self._watchdog.leave()
            del self._waiting[job]
            _note(job)
            # Also what has failed: its rows that nobody took give their place back.
            self._queue.discard(job)
            self._wake_patient()

    async def _next_end(self) -> None:
        """Until some job is over. What fills the queue is a job, so there will be one."""
        ended = asyncio.get_running_loop().create_future()
        self._patient.append(ended)
        await ended

    def _wake_patient(self) -> None:
        woken, self._patient = self._patient, []
        for future in woken:
            if not future.done():
                future.set_result(None)

    def _check_ready(self) -> None:
        if self.state == "failed":
            raise EngineStopped("the scoring thread has ended; this server must be restarted")
        if self.draining.is_set():
            raise NotReady("the server is shutting down", code="draining", retry_after=5.0)
        _ = self.loaded

    def _rate(self) -> float:
        return self._runner.asked_tokens_per_second if self._runner is not None else 0.0

    async def drain(self, timeout: float) -> None:
        """Let no new work in and wait until what is queued is answered, `timeout` seconds at most."""
        self.draining.set()
        self._queue.close()
        self._wake_patient()
        try:
            await asyncio.wait_for(self.stopped.wait(), timeout)
        except TimeoutError:
            log.warning("work was still queued after %g s of draining; it is dropped", timeout)

    async def close(self) -> None:
        """End the MLX thread after the micro-batch that it is in; who still waits gets an error."""
        self._aborting = True
        self.draining.set()
        self._wake_patient()
        for job in self._queue.clear():
            job.fail(EngineStopped("the server is shutting down"))
        if self._thread.ident:
            await self.stopped.wait()
            if not self._hangs:  # a thread that does is not waited for: the process ends without it
                self._thread.join()
        for pool in (self._pool, self._short_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _pulse(self) -> Pulse:
        assert self._runner is not None, "this is a bug: somebody waits before the model is loaded"
        return self._runner.pulse

    def _on_hang(self) -> None:
        self._hangs = True
        self.failure = EngineStopped("the scoring thread hangs; this server must be restarted")
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._thread.ident or 0)
        where = "".join(traceback.format_stack(frame)) if frame else ""
        log.critical("the MLX thread hangs (--hang-timeout); it is here:\n%s", where)
        self._end(self.failure)

    def _end(self, error: EngineStopped) -> None:
        """Nobody is left waiting, whatever became of the thread."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._wake_patient()
        self._ready.set()
        self.stopped.set()

    def _on_loop(self, fn: Callable[..., object], *args: object) -> None:
        assert self._loop is not None, "this is a bug: a job was finished before start()"
        # A loop that is closed has nobody left who waits.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(fn, *args)

    # --- the MLX side ---

    def _main(self) -> None:
        try:
            loaded = self._load()
            self._runner = Runner(self._queue, loaded.scorer, lambda: self._aborting)
            self._loaded = loaded
            self._on_loop(self._ready.set)
            try:
                self._runner.run()
            finally:
                loaded.scorer.close()
        except BaseException as error:  # whatever it is, nobody may be left waiting
            self.failure = error
            if self._loaded is not None:
                log.critical("the MLX thread died", exc_info=error)
        finally:
            ended = EngineStopped("the scoring thread has ended")
            if self._runner is not None:
                self._runner.abandon(ended)
            for job in self._queue.clear():
                job.fail(ended)
            self._on_loop(self._end, ended)


def _note(job: Job) -> None:
    """A job is over, for its caller at least: tell the request's timing of it."""
    if (timing := current()) is not None:
        now = time.monotonic()
        timing.rows += len(job.rows)
        timing.tokens += int(job.costs.sum())
        timing.computed_tokens += job.computed_tokens
        timing.cached_tokens += job.cached_tokens
        timing.note(Span("queue", job.asked_at, job.begun_at or now))
        if job.begun_at is not None:
            timing.note(Span("compute", job.begun_at, job.finished_at or now))


def _resolve(future: "asyncio.Future[Scored]", job: Job) -> None:
    if future.done():  # the caller has left
        return
    if job.error is not None:
        future.set_exception(job.error)
    else:
        scores = [score for score in job.scores if score is not None]
        assert len(scores) == len(job.rows), "this is a bug: a finished job has all its scores"
        future.set_result(Scored(scores, job.computed_tokens, job.cached_tokens))
