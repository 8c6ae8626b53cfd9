"""Lines of an answer that are due, in bounded memory. Knows no HTTP."""

import asyncio
from collections import deque
from collections.abc import Mapping

MAX_ITEMS = 4096
"""Items of one stream that may be here unanswered."""
MAX_BYTES = 2 * 2**20
"""What their answers may weigh together; a heavier one is here alone."""
MAX_UNSENT_BYTES = 16 * 2**20
"""Answers that a client may leave unread before nothing more is read of what it sends: so far gets a client
that sends all before it reads anything."""
_CHUNK = 2**16


class Outbox:
    """Counts what is unanswered and what is unsent. One task waits for room, another for lines."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._next = 0
        self._early: dict[int, bytes] = {}
        self._due = deque[bytes]()
        self._unsent = 0
        self._weights: dict[int, int] = {}
        self._weight = 0
        self._freed = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when there may be something to send."""
        self._sent = 0

    def at_rest(self) -> int | None:
        """None while something is unanswered or unsent; else how many lines have been sent so far."""
        return None if self._weights or self._unsent else self._sent

    async def enter(self, weights: Mapping[int, int]) -> None:
        """Wait for room for items, by their indexes: at most `MAX_ITEMS`, and `MAX_BYTES` if several."""
        weight = sum(weights.values())
        while self._unsent > MAX_UNSENT_BYTES or (
            self._weights
            and (len(self._weights) + len(weights) > MAX_ITEMS or self._weight + weight > MAX_BYTES)
        ):
            self._freed.clear()
            await self._freed.wait()
        self._weights.update(weights)
        self._weight += weight

    def put(self, index: int, line: bytes) -> None:
        """An item's answer."""
        self._weight -= self._weights.pop(index)
        self._unsent += len(line)
        if not self._ordered:
            self._due.append(line)
        else:
            self._early[index] = line
            while (following := self._early.pop(self._next, None)) is not None:
                self._next += 1
                self._due.append(following)
        self._freed.set()
        self.changed.set()

    def peek(self) -> tuple[bytes, int]:
        """What to send next, and how many lines that is; 0 where there is nothing."""
        some: list[bytes] = []
        size = 0
        for line in self._due:
            some.append(line)
            size += len(line)
            if size >= _CHUNK:
                break
        return b"".join(some), len(some)

    def drop(self, count: int) -> None:
        """So many lines have been sent."""
        for _ in range(count):
            self._unsent -= len(self._due.popleft())
        self._sent += count
        self._freed.set()
