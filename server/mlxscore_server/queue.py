"""What waits, who may still enter, what is taken next. Knows no MLX, no asyncio.

Many threads may put and discard; one thread takes. Waiting is on a condition: nothing polls.
"""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxscore_server.row import Row, RowScore
from mlxscore_server.turns import Turns

LOW_SHARE = 8
"""While others wait, what has low priority gets one token in so many, and never less."""


@dataclass(eq=False)
class Job:
    """One caller's rows, and what has been answered so far.

    Owned by the taking thread once taken, except `cancelled`, which the caller may set at any time.
    """

    rows: Sequence[Row]
    done: Callable[["Job"], None]
    """Called once by the taking thread, when the last row is answered or an error is set."""
    caller: Hashable = None
    """Who asked: callers have equal shares."""
    low: bool = False
    """Whether it goes behind what is not."""
    cancelled: bool = False
    finished: bool = False
    error: BaseException | None = None
    computed_tokens: int = 0
    cached_tokens: int = 0
    scores: list[RowScore | None] = field(default_factory=list[RowScore | None])
    taken: int = 0
    unanswered: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    """Seconds of `time.monotonic`, as ..."""
    begun_at: float | None = None
    """... the time when its first rows were taken and the one when it was finished, once they are past."""
    finished_at: float | None = None

    def __post_init__(self) -> None:
        self.scores = [None] * len(self.rows)
        self.unanswered = len(self.rows)
        self.costs = np.fromiter((row.num_inputs for row in self.rows), np.int64, len(self.rows))
        self.waiting_tokens = int(self.costs.sum())
        """Tokens that have not been taken."""

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for what is unanswered."""
        return not self.cancelled and not self.finished

    @property
    def waits(self) -> bool:
        """Whether some of its rows have not been taken."""
        return self.wanted and self.taken < len(self.rows)

    def answer(
        self, index: int, score: RowScore, computed_tokens: int, cached_tokens: int = 0
    ) -> None:
        """Record one row's score; the last one finishes the job."""
        if self.finished:
            return
        self.scores[index] = score
        self.computed_tokens += computed_tokens
        self.cached_tokens += cached_tokens
        self.unanswered -= 1
        if not self.unanswered:
            self._finish()

    def fail(self, error: BaseException) -> None:
        """End the job with an error; its rows that have not run never will."""
        if not self.finished:
            self.error = error
            self._finish()

    def begin(self) -> None:
        """Some of its rows have been taken."""
        if self.begun_at is None:
            self.begun_at = time.monotonic()

    def _finish(self) -> None:
        self.finished = True
        self.finished_at = time.monotonic()
        self.done(self)


@dataclass(frozen=True)
class Entry:
    """One row of a job."""

    job: Job
    index: int

    @property
    def row(self) -> Row:
        return self.job.rows[self.index]


class ScoreQueue:
    """Callers in turn, and each caller's jobs in turn: each gives up its share of the window, then stands
    at the back. Jobs of low priority get what others leave, and at least a `LOW_SHARE`th."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._normal = Turns[Hashable, Job]()
        self._low = Turns[Hashable, Job]()
        # What low priority may still take, in tokens; below 0 where its last row was larger than that.
        self._low_credit = 0
        self._tokens = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def tokens(self) -> int:
        """Tokens that wait, not counting what has been taken."""
        return self._tokens

    def put(self, job: Job) -> bool:
        """Queue a job; False if it does not fit or the queue is closed.

        A job larger than the whole queue is let in when nothing else waits: otherwise it could
        never run, and its caller would be told to try again for ever.
        """
        with self._changed:
            tokens = job.waiting_tokens
            if self._closed or (self._tokens and self._tokens + tokens > self.max_tokens):
                return False
            self._line(job).add(job.caller, job)
            self._tokens += tokens
            self._changed.notify()
            return True

    def discard(self, job: Job) -> None:
        """Drop a job whose caller has left; what is untaken gives its place back at once."""
        with self._changed:
            job.cancelled = True
            if self._line(job).remove(job.caller, job):
                self._tokens -= job.waiting_tokens

    def take(self, max_tokens: int, *, wait: bool = True) -> list[Entry] | None:
        """Rows of about `max_tokens`, fair across callers and their jobs. None: closed and empty.

        Waits for work; or not, and then the list may be empty.
        """
        with self._changed:
            while wait and not self._waits and not self._closed:
                self._changed.wait()
            if not self._waits:
                return None if self._closed else []
            window: list[Entry] = []
            left = max_tokens - self._take_low_share(max_tokens, window)
            for line in (self._normal, self._low):
                left -= self._take_by_turns(line, left, window)
            return window

    def take_small(self, max_tokens: int) -> list[Entry]:
        """All rows of jobs that have come since the last `take` and are small: together at most
        `max_tokens`, one of each caller by turns. They need not wait for the window that runs."""
        with self._changed:
            window: list[Entry] = []
            left = max_tokens
            # Low priority is for who can wait.
            owners = {owner: iter(self._normal.of(owner)) for owner in self._normal.owners()}
            while owners and left > 0:
                for owner, jobs in list(owners.items()):
                    small = (j for j in jobs if not j.taken and j.waiting_tokens <= left)
                    if (job := next(small, None)) is None:
                        del owners[owner]
                    else:
                        left -= self._take_from(self._normal, job, left, window)
            return window

    @property
    def _waits(self) -> bool:
        return bool(self._normal) or bool(self._low)

    def _line(self, job: Job) -> Turns[Hashable, Job]:
        return self._low if job.low else self._normal

    def _take_low_share(self, max_tokens: int, window: list[Entry]) -> int:
        """Give low priority its part of a window that others wait for too; the tokens moved."""
        if not (self._normal and self._low):
            self._low_credit = 0
            return 0
        self._low_credit += max(1, max_tokens // LOW_SHARE)
        moved = self._take_by_turns(self._low, self._low_credit, window)
        self._low_credit -= moved
        return moved

    def _take_by_turns(self, line: Turns[Hashable, Job], tokens: int, window: list[Entry]) -> int:
        """Move rows of about so many tokens to the window; the tokens moved, by a row more at most."""
        left = tokens
        while line and left > 0:
            owners = line.owners()
            # An equal share of what is left for each in line, in this round.
            share = max(1, left // len(owners))
            for owner in owners:
                left -= self._take_of(line, owner, min(share, left), window)
                line.served(owner)
                if left <= 0:
                    break
        return tokens - left

    def _take_of(
        self, line: Turns[Hashable, Job], owner: Hashable, tokens: int, window: list[Entry]
    ) -> int:
        """The same of one caller's jobs."""
        left = tokens
        while left > 0 and (jobs := line.of(owner)):
            share = max(1, left // len(jobs))
            for job in jobs:
                left -= self._take_from(line, job, min(share, left), window)
                if left <= 0:
                    break
        return tokens - left

    def _take_from(
        self, line: Turns[Hashable, Job], job: Job, share: int, window: list[Entry]
    ) -> int:
        """Move rows of up to `share` tokens, at least one row, to the window; the tokens moved."""
        line.remove(job.caller, job)
        if not job.wanted:
            self._tokens -= job.waiting_tokens
            return 0
        sums = np.cumsum(job.costs[job.taken :])
        count = max(1, int(np.searchsorted(sums, share, side="right")))
        window.extend(Entry(job, i) for i in range(job.taken, job.taken + count))
        moved = int(sums[count - 1])
        job.taken += count
        job.waiting_tokens -= moved
        self._tokens -= moved
        if job.taken < len(job.rows):
            line.add(job.caller, job)
        return moved

    def close(self) -> None:
        """Let no more in; `take` gives out what is there and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> list[Job]:
        """Close and empty the queue; the jobs that were in it."""
        with self._changed:
            self._closed = True
            jobs, self._tokens = [*self._normal.all(), *self._low.all()], 0
            self._normal.clear()
            self._low.clear()
            self._changed.notify_all()
            return jobs
