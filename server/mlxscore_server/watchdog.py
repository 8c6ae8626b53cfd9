"""Notices that the MLX thread hangs: somebody waits, and nothing is planned, started or done any more."""

import asyncio
import math
from collections.abc import Callable

from mlxscore_server.pulse import Pulse

TICKS = 10
"""Looks at the pulse in the time that a step may take."""
SLOWER = 10
"""How many times as long as expected a step may take: other programs use the machine too."""
_UNKNOWN = 3
"""So many times as long where no step was measured yet: the first ones also build kernels."""


class Watchdog:
    """Runs on the event loop, and only while somebody waits: an idle server is never woken.

    Counts its own looks, not a clock: a machine that sleeps or a process that is stopped makes none.
    """

    def __init__(
        self, timeout: float, pulse: Callable[[], Pulse], hung: Callable[[], None]
    ) -> None:
        """`hung` is called once when the thread hangs; a `timeout` of 0 s never finds that."""
        self._timeout, self._pulse, self._hung = timeout, pulse, hung
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beats = self._missed = 0

    def enter(self) -> None:
        """One more waits for the thread."""
        self._waiting += 1
        if self._timer is None and self._timeout > 0:
            self._missed, self._beats = 0, self._pulse().beats
            self._set()

    def leave(self) -> None:
        """One less does."""
        self._waiting -= 1
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Look at the pulse, a `TICKS`th of the timeout after the last look."""
        pulse = self._pulse()
        self._missed = self._missed + 1 if pulse.beats == self._beats else 0
        self._beats = pulse.beats
        if self._missed < self.patience(pulse):
            return self._set()
        self._timer = None
        self._timeout = 0  # once is enough
        self._hung()

    def patience(self, pulse: Pulse) -> int:
        """So many looks without a beat mean that the thread hangs."""
        if not pulse.best_rate:
            return TICKS * _UNKNOWN
        return max(TICKS, math.ceil(TICKS * SLOWER * pulse.expected_seconds / self._timeout))

    def _set(self) -> None:
        # A timer, where all else waits on conditions: that nothing happens cannot be waited for.
        self._timer = asyncio.get_running_loop().call_later(self._timeout / TICKS, self.look)
