"""Whether there is room for one more request, and when to come back where there is none. Knows no HTTP."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from mlxscore_server.errors import QueueFull
from mlxscore_server.queue import Job, ScoreQueue

_LEAST, _MOST = 1.0, 120.0
"""Seconds that anyone is told to wait."""


class Room:
    """Counts the requests whose bodies are here and whose answers are not; the queue counts the tokens."""

    def __init__(self, queue: ScoreQueue, max_requests: int, rate: Callable[[], float]) -> None:
        """`rate`: tokens of requests that are scored in a second, 0 where that is not known yet."""
        self._queue, self._max_requests, self._rate = queue, max_requests, rate
        self.requests = 0

    def check(self) -> None:
        """Raise QueueFull where nothing whatever would be let in."""
        if self.requests >= self._max_requests:
            # A place is free as soon as any of them is through.
            tokens = self._queue.tokens / self.requests
            raise QueueFull(
                f"{self.requests} requests are here already; the limit (--max-queued-requests) is "
                f"{self._max_requests}",
                retry_after=self._seconds(tokens),
            )
        if self._queue.tokens >= self._queue.max_tokens:
            raise self._too_many_tokens(1, f"{self._queue.tokens} tokens wait already")

    @contextmanager
    def place(self) -> Generator[None]:
        """Count one more request. Raises QueueFull; the place is free again when this ends."""
        self.check()
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def refused(self, job: Job) -> QueueFull:
        """What to tell the caller of a job that the queue did not take."""
        new = job.waiting_tokens
        return self._too_many_tokens(
            new, f"{self._queue.tokens} tokens wait already and this request brings {new}"
        )

    def _too_many_tokens(self, new: int, what: str) -> QueueFull:
        most = self._queue.max_tokens
        # What is larger than the whole queue is let in when nothing waits.
        over = self._queue.tokens + min(new, most) - most
        return QueueFull(
            f"{what}; the limit (--max-queued-tokens) is {most}", retry_after=self._seconds(over)
        )

    def _seconds(self, tokens: float) -> float:
        """How long it takes until so many of the tokens that wait do so no more."""
        rate = self._rate() or 1000.0
        return min(max(_LEAST, tokens / rate), _MOST)
