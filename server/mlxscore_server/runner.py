"""The MLX thread's loop: windows out of the queue, micro-batches through the scorer, answers to jobs.

Knows no MLX call and no asyncio. While one micro-batch runs on the device, the next is built. What fails
is tried again in halves, down to the row that is to blame.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mlxscore_server.errors import EngineStopped, MlxscoreError, NonFiniteLogits, ScoringFailed
from mlxscore_server.out_of_memory import is_out_of_memory
from mlxscore_server.pulse import Pulse
from mlxscore_server.queue import Entry, ScoreQueue
from mlxscore_server.resident import Scorer
from mlxscore_server.row import RowScore
from mlxscore_server.turn import Turn

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
LEAST_BATCH_TOKENS = 256
"""Where memory runs out, micro-batches are not made smaller than this."""


class Runner:
    """Runs on the MLX thread until the queue is closed and empty, or it is told to stop."""

    def __init__(self, queue: ScoreQueue, scorer: Scorer, stop: Callable[[], bool]) -> None:
        self._queue, self._scorer, self._stop = queue, scorer, stop
        self._max_in_flight = 1 if scorer.overlaps else 0
        # The last is the one that runs: newcomers' small windows go before the rest of a large one.
        self._turns: list[Turn] = []
        # What is planned anew, the last first, one turn at a time.
        self._again: list[list[Entry]] = []
        self._entering: list[Entry] = []
        self._flying: deque[tuple[Turn, Any, int]] = deque()
        self._newcomers_may_enter = False
        self._landed = time.monotonic()
        self.tokens_per_second = 0.0
        self._asked_per_computed = 1.0
        self.pulse = Pulse()

    @property
    def _window_tokens(self) -> int:
        return WINDOW_BATCHES * self._scorer.max_batch_tokens

    @property
    def _may_fly(self) -> int:
        """How many steps may be under way; one by one after a failure, so that each fails on its own."""
        return self._max_in_flight if self._turns and not self._turns[-1].again else 0

    @property
    def asked_tokens_per_second(self) -> float:
        """Tokens a second as rows are asked for, what they share counted for each; 0 before the first."""
        return self.tokens_per_second * self._asked_per_computed

    def run(self) -> None:
        """Score what comes. Raises only what is a bug, or no Exception; then call `abandon`."""
        while not self._stop():
            if self._turns and self._newcomers_may_enter:
                self._newcomers_may_enter = False
                small = max(1, int(_SMALL * self._scorer.max_batch_tokens))
                if newcomers := self._queue.take_small(small):
                    self._begin(newcomers)
            if self._again and not any(turn.again for turn in self._turns):
                self._begin(self._again.pop(), again=True)
            elif not self._turns and not self._take():
                return
            if self._turns:
                self._advance(self._turns[-1])
            while len(self._flying) > self._may_fly:
                self._land()
        self.abandon(EngineStopped("the server is shutting down"))

    def abandon(self, error: MlxscoreError) -> None:
        """Give everyone whose rows have begun an error."""
        for entry in [*self._entering, *(entry for group in self._again for entry in group)]:
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

    def _begin(self, entries: Sequence[Entry], *, again: bool = False) -> None:
        self.pulse.beat()
        self._entering = [entry for entry in entries if entry.job.wanted]
        for entry in self._entering:
            entry.job.begin()
        if self._entering:  # it stays set where the planning raises, so that nobody is lost
            turn = Turn(self._scorer, self._entering, again=again)
            self._turns.append(turn)
            asked = sum(entry.row.num_inputs for entry in self._entering)
            ratio = asked / max(1, sum(turn.computed))
            self._asked_per_computed += 0.2 * (ratio - self._asked_per_computed)
        self._entering = []

    def _advance(self, turn: Turn) -> None:
        if turn.spoiled:
            # What is left is planned anew without the rows that nobody waits for.
            while turn.in_flight:
                self._land()
            if turn in self._turns:  # else a landing failed, and all is planned anew
                self._turns.remove(turn)
                turn.window.close()
                self._try_again(turn)
                self._begin(turn.wanted(doubtful=False), again=turn.again)
            return
        step = turn.next_step
        turn.next_step += 1
        self.pulse.start(turn.window.tokens_of(step))
        try:
            started = turn.window.start(step)
        except Exception as error:
            return self._recover(turn, step, error)
        turn.in_flight += 1
        self._flying.append((turn, started, step))
        # Not after a step of newcomers: the window has every second one for itself.
        self._newcomers_may_enter = turn is self._turns[0]
        if not turn.left:
            # Also where someone has left: there is nothing left to plan anew.
            self._turns.pop()

    def _land(self) -> None:
        """Wait for the oldest micro-batch and answer what is complete with it."""
        turn, started, step = self._flying.popleft()
        turn.in_flight -= 1
        try:
            answers = turn.window.finish(started)
        except Exception as error:
            return self._recover(turn, step, error)
        self._measure(turn.window.tokens_of(step))
        self._answer(turn, answers)
        if not turn.left and not turn.in_flight and turn not in self._turns:
            turn.window.close()
            self._try_again(turn)

    def _answer(self, turn: Turn, answers: Sequence[tuple[int, RowScore | MlxscoreError]]) -> None:
        for index, answer in answers:
            if index in turn.doubtful:
                continue
            if isinstance(answer, NonFiniteLogits) and not turn.to_blame:
                # It may be another row's: what is masked counts 0 times, and 0 times NaN is NaN.
                turn.doubtful.add(index)
                continue
            entry = turn.answered(index)
            if isinstance(answer, MlxscoreError):
                self._refuse(entry, answer)
            else:
                entry.job.answer(entry.index, answer, turn.computed[index], turn.cached[index])

    def _recover(self, turn: Turn, step: int, error: Exception) -> None:
        """A step raised: neither it nor what is kept can be trusted, so all is planned anew."""
        tokens = turn.window.tokens_of(step)
        turn.doubt(step)
        log.error("a micro-batch of %d rows failed", len(turn.doubtful), exc_info=error)
        turns = list(dict.fromkeys([*self._turns, *(other for other, _, _ in self._flying), turn]))
        while self._flying:
            other, started, other_step = self._flying.popleft()
            other.in_flight -= 1
            try:
                answers = other.window.finish(started)
            except Exception:  # most likely what it goes on from is what failed
                other.doubt(other_step)
            else:
                self._answer(other, answers)
        self._turns.clear()
        self._scorer.free()
        smaller = is_out_of_memory(error) and self._lighten(tokens)
        for other in turns:
            other.window.close()
            if rest := other.wanted(doubtful=False):
                self._again.append(rest)
            # Another's step may have failed only because this one did.
            self._try_again(other, error, whole=smaller or other is not turn)
        self.pulse.beat()

    def _lighten(self, tokens: int) -> bool:
        """Memory ran out in a micro-batch of `tokens`: make the next ones half as large, if that can be."""
        most = self._scorer.max_batch_tokens
        # A row that is larger than a micro-batch may be is not made smaller by smaller ones.
        fewer = max(LEAST_BATCH_TOKENS, min(most, tokens) // 2)
        if tokens > most or fewer >= min(most, tokens):
            return False
        self._scorer.lighten(fewer)
        log.warning(
            "memory ran out: micro-batches hold %d tokens from now on, not %d; caches were dropped",
            fewer,
            most,
        )
        return True

    def _try_again(
        self, turn: Turn, error: Exception | None = None, *, whole: bool = False
    ) -> None:
        """Plan anew what of a closed window is in doubt: in halves, down to one row."""
        doubtful = turn.wanted(doubtful=True)
        if not doubtful:
            return
        if whole:
            self._again.append(doubtful)
        elif not turn.to_blame:
            half = (len(doubtful) + 1) // 2
            self._again += [part for part in (doubtful[half:], doubtful[:half]) if part]
        else:
            failed = ScoringFailed("the model failed on this row")
            if error is not None and is_out_of_memory(error):
                failed = ScoringFailed("memory ran out on this row alone", code="out_of_memory")
            failed.__cause__ = error
            self._refuse(doubtful[0], failed)

    def _refuse(self, entry: Entry, error: MlxscoreError) -> None:
        if isinstance(error, ScoringFailed):
            error.row = entry.index
        entry.job.fail(error)

    def _measure(self, tokens: int) -> None:
        now = time.monotonic()
        rate = tokens / max(now - self._landed, 1e-6)
        self._landed = now
        before = self.tokens_per_second or rate
        self.tokens_per_second = 0.8 * before + 0.2 * rate
        self.pulse.land(rate)
