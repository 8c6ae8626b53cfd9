"""How late the event loop is: what blocks it keeps everybody waiting, whatever they ask for."""

import asyncio
from collections.abc import Callable

_EVERY = 0.1  # seconds


class LoopLag:
    """Sampled while some request is being answered, else the process sleeps."""

    def __init__(self, observe: Callable[[float], object]) -> None:
        """`observe` is called with seconds."""
        self._observe = observe
        self._requests = 0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> None:
        """One more request is being answered."""
        self._requests += 1
        if self._timer is None:
            self._set()

    def leave(self) -> None:
        """One less is. The timer runs out by itself: to stop and start it for each would cost more."""
        self._requests -= 1

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY, self._tick)

    def _tick(self) -> None:
        assert self._timer is not None, "this is a bug: it ticks without a timer"
        self._observe(max(0.0, asyncio.get_running_loop().time() - self._timer.when()))
        self._timer = None
        if self._requests:
            self._set()
