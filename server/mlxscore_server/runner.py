"""The MLX thread's loop: windows out of the queue, micro-batches through the scorer, answers to jobs.

Knows no MLX call and no asyncio. While one micro-batch runs on the device, the next is built.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mlxscore_server.errors import EngineStopped, MlxscoreError, ScoringFailed
from mlxscore_server.queue import Entry, Job, ScoreQueue
from mlxscore_server.resident import Scorer

log = logging.getLogger("mlxscore")

# How many micro-batches' worth of rows are planned together: enough to find what rows have in
# common and to fill micro-batches, few enough that a newcomer does not wait behind all of a bulk run.
WINDOW_BATCHES = 4
# Where most of it is shared or kept, as few-shot questions are, a window takes more: in steps of at most
# so many times the tokens as they were asked for, up to what is planned in 20 ms.
_GROWTH = 4
_MOST_TOKENS = 2**18
# A job of at most this part of a micro-batch does not wait for the window's end.
_SMALL = 0.25


class _Turn:
    """A window of entries that is being scored."""

    def __init__(self, scorer: Scorer, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.window = scorer.plan([entry.row for entry in entries])
        self.computed, self.cached = self.window.computed, self.window.cached
        self.next_step = 0
        self.in_flight = 0
        self.unanswered = set(range(len(entries)))
        self.rows_of_job: dict[Job, int] = {}
        for entry in entries:
            self.rows_of_job[entry.job] = self.rows_of_job.get(entry.job, 0) + 1

    @property
    def left(self) -> bool:
        """Whether some step has not been started."""
        return self.next_step < self.window.num_steps

    @property
    def spoiled(self) -> bool:
        """Whether someone has left, or got an error, whose rows are still to come."""
        return any(not job.wanted for job in self.rows_of_job)

    def answered(self, index: int) -> Entry:
        """Note that a row has its answer; whose row it is."""
        entry = self.entries[index]
        self.unanswered.discard(index)
        self.rows_of_job[entry.job] -= 1
        if not self.rows_of_job[entry.job]:
            del self.rows_of_job[entry.job]
        return entry


class Runner:
    """Runs on the MLX thread until the queue is closed and empty, or it is told to stop."""

    def __init__(self, queue: ScoreQueue, scorer: Scorer, stop: Callable[[], bool]) -> None:
        self._queue, self._scorer, self._stop = queue, scorer, stop
        self._window_tokens = WINDOW_BATCHES * scorer.max_batch_tokens
        self._small_tokens = max(1, int(_SMALL * scorer.max_batch_tokens))
        self._max_in_flight = 1 if scorer.overlaps else 0
        # The last is the one that runs: newcomers' small windows go before the rest of a large one.
        self._turns: list[_Turn] = []
        self._entering: list[Entry] = []
        self._flying: deque[tuple[_Turn, Any, int]] = deque()
        self._newcomers_may_enter = False
        self._landed = time.monotonic()
        self.tokens_per_second = 0.0

    def run(self) -> None:
        """Score what comes. Raises only what is a bug, or no Exception; then call `abandon`."""
        while not self._stop():
            if self._turns and self._newcomers_may_enter:
                self._newcomers_may_enter = False
                if small := self._queue.take_small(self._small_tokens):
                    self._begin(small)
            if not self._turns and not self._take():
                return
            if self._turns:
                self._advance(self._turns[-1])
            while len(self._flying) > (self._max_in_flight if self._turns else 0):
                self._land()
        self.abandon(EngineStopped("the server is shutting down"))

    def abandon(self, error: MlxscoreError) -> None:
        """Give everyone whose rows have begun an error."""
        for entry in self._entering:
            entry.job.fail(error)
        for turn in [*self._turns, *(turn for turn, _, _ in self._flying)]:
            for job in list(turn.rows_of_job):
                job.fail(error)

    def _take(self) -> bool:
        """Begin a new window, if there is work; False when there will be none any more."""
        entries = self._queue.take(self._window_tokens, wait=not self._flying)
        if entries:
            self._landed = time.monotonic()
            self._begin(entries)
            self._fill()
        return entries is not None or bool(self._flying)

    def _fill(self) -> None:
        """Take more of what waits while what was taken leaves a good part of a window empty."""
        asked = self._window_tokens
        while self._queue.tokens and asked < _MOST_TOKENS:
            computed = max(1, sum(self._turns[-1].computed))
            more = int(asked * min(_GROWTH, self._window_tokens / computed)) - asked
            entries = self._queue.take(more, wait=False) if more >= asked / 2 else None
            if not entries:
                return
            asked += more
            small = self._turns.pop()
            small.window.close()
            self._begin([*small.entries, *entries])

    def _begin(self, entries: list[Entry]) -> None:
        self._entering = entries  # so that they are not lost, should the planning raise
        self._turns.append(_Turn(self._scorer, entries))
        self._entering = []

    def _advance(self, turn: _Turn) -> None:
        if turn.spoiled:
            # What is left is planned anew without the rows that nobody waits for.
            while turn.in_flight:
                self._land()
            self._turns.pop()
            turn.window.close()
            wanted = [turn.entries[i] for i in sorted(turn.unanswered)]
            if wanted := [entry for entry in wanted if entry.job.wanted]:
                self._begin(wanted)
            return
        step = turn.next_step
        turn.next_step += 1
        try:
            started = turn.window.start(step)
        except Exception as error:
            self._fail(turn, step, error)
        else:
            turn.in_flight += 1
            self._flying.append((turn, started, step))
        # Not after a step of newcomers: the window has every second one for itself.
        self._newcomers_may_enter = turn is self._turns[0]
        if not turn.left:
            # Also where someone has left: there is nothing left to plan anew.
            self._turns.pop()
            self._close_if_over(turn)

    def _land(self) -> None:
        """Wait for the oldest micro-batch and answer what is complete with it."""
        turn, started, step = self._flying.popleft()
        turn.in_flight -= 1
        try:
            answers = list(turn.window.finish(started))
        except Exception as error:
            self._fail(turn, step, error)
            return self._close_if_over(turn)
        self._measure(turn.window.tokens_of(step))
        for index, answer in answers:
            entry = turn.answered(index)
            if isinstance(answer, MlxscoreError):
                if isinstance(answer, ScoringFailed):
                    answer.row = entry.index
                entry.job.fail(answer)
            else:
                entry.job.answer(entry.index, answer, turn.computed[index], turn.cached[index])
        self._close_if_over(turn)

    def _close_if_over(self, turn: _Turn) -> None:
        if not turn.left and not turn.in_flight and turn not in self._turns:
            turn.window.close()

    def _fail(self, turn: _Turn, step: int, error: Exception) -> None:
        rows = turn.window.rows_of(step)
        log.error("a micro-batch of %d rows failed", len(rows), exc_info=error)
        for index in rows:
            if index in turn.unanswered:
                failed = ScoringFailed("the model failed on this request's micro-batch")
                failed.__cause__ = error
                turn.entries[index].job.fail(failed)

    def _measure(self, tokens: int) -> None:
        now = time.monotonic()
        rate = tokens / max(now - self._landed, 1e-6)
        self._landed = now
        before = self.tokens_per_second or rate
        self.tokens_per_second = 0.8 * before + 0.2 * rate
