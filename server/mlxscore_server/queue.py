"""What waits, who may still enter, what is taken next. Knows no MLX, no asyncio.

Many threads may put and discard; one thread takes. Waiting is on a condition: nothing polls.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxscore_server.row import Row, RowScore


@dataclass(eq=False)
class Job:
    """One caller's rows, and what has been answered so far.

    Owned by the taking thread once taken, except `cancelled`, which the caller may set at any time.
    """

    rows: Sequence[Row]
    done: Callable[["Job"], None]
    """Called once by the taking thread, when the last row is answered or an error is set."""
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

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for what is unanswered."""
        return not self.cancelled and not self.finished

    @property
    def waits(self) -> bool:
        """Whether some of its rows have not been taken."""
        return self.wanted and self.taken < len(self.rows)

    @property
    def waiting_tokens(self) -> int:
        return int(self.costs[self.taken :].sum())

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
    """Jobs in turn: each job gives up a share of the window, then stands at the back."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._jobs: deque[Job] = deque()
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
            self._jobs.append(job)
            self._tokens += tokens
            self._changed.notify()
            return True

    def discard(self, job: Job) -> None:
        """Drop a job whose caller has left; what is untaken gives its place back at once."""
        with self._changed:
            job.cancelled = True
            if job in self._jobs:
                self._jobs.remove(job)
                self._tokens -= job.waiting_tokens

    def take(self, max_tokens: int, *, wait: bool = True) -> list[Entry] | None:
        """Rows of about `max_tokens`, fair across jobs. None: closed and empty.

        Waits for work; or not, and then the list may be empty.
        """
        with self._changed:
            while wait and not self._jobs and not self._closed:
                self._changed.wait()
            if not self._jobs:
                return None if self._closed else []
            window: list[Entry] = []
            left = max_tokens
            while self._jobs and left > 0:
                # An equal share of what is left for each job in line, in this round.
                share = max(1, left // len(self._jobs))
                for _ in range(len(self._jobs)):
                    left -= self._take_from(self._jobs.popleft(), min(share, left), window)
                    if left <= 0:
                        break
            return window

    def take_small(self, max_tokens: int) -> list[Entry]:
        """All rows of jobs that have come since the last `take` and are small: together at most
        `max_tokens`, the first to come first. They need not wait for the window that runs."""
        with self._changed:
            window: list[Entry] = []
            left = max_tokens
            for job in [job for job in self._jobs if not job.taken and job.waiting_tokens <= left]:
                if job.waiting_tokens <= left:
                    self._jobs.remove(job)
                    left -= self._take_from(job, left, window)
            return window

    def _take_from(self, job: Job, share: int, window: list[Entry]) -> int:
        """Move rows of up to `share` tokens, at least one row, to the window; the tokens moved."""
        if not job.wanted:
            self._tokens -= job.waiting_tokens
            return 0
        sums = np.cumsum(job.costs[job.taken :])
        count = max(1, int(np.searchsorted(sums, share, side="right")))
        window.extend(Entry(job, i) for i in range(job.taken, job.taken + count))
        moved = int(sums[count - 1])
        job.taken += count
        self._tokens -= moved
        if job.taken < len(job.rows):
            self._jobs.append(job)
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
            jobs, self._tokens = list(self._jobs), 0
            self._jobs.clear()
            self._changed.notify_all()
            return jobs
