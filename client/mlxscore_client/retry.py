"""When to send a request again, and after how long. Knows no HTTP and does not wait itself."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from mlxscore_client.errors import APIStatusError, MlxscoreError

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 8.0
_LONGEST_RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with jitter; `Retry-After` is the least that is waited, up to a minute."""

    max_retries: int = 4
    random: Callable[[], float] = random.random

    def delay(self, error: MlxscoreError, attempt: int) -> float | None:
        """Seconds to wait after the attempt (0 is the first) that failed so; None to give up."""
        if not error.retryable:
            return None
        if attempt >= self.max_retries:
            if attempt:
                error.add_note(f"gave up after {attempt + 1} attempts (max_retries)")
            return None
        backoff = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**attempt)
        # Clients that were refused together must not come back together.
        backoff *= 0.5 + 0.5 * self.random()
        told = error.retry_after if isinstance(error, APIStatusError) else None
        return backoff + min(told or 0.0, _LONGEST_RETRY_AFTER_SECONDS)
