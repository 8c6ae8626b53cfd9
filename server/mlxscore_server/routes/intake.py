"""A body that is taken in piece by piece, as there is room for it, from a client that may leave."""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from mlxscore_server.errors import BodyTimeout

# With room for one, the next is waited for: so a client that leaves is noticed while others stand in line.
_PIECES = 4


class Intake:
    """`run` receives, `pieces` gives out."""

    def __init__(self, receive: Receive, timeout: float, at_rest: Callable[[], int | None]) -> None:
        """`timeout`: seconds without a piece after which the client is given up, where nothing else went
        on either: `at_rest` is None where something does, and another number each time it has ended."""
        self._receive, self._timeout, self._at_rest = receive, timeout, at_rest
        self._pieces = asyncio.Queue[bytes | None](_PIECES)

    async def run(self) -> None:
        """Until it is cancelled. Raises ClientDisconnect, and BodyTimeout where nothing comes."""
        more = True
        while more:
            message = await self._next()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if body := message.get("body"):
                await self._pieces.put(body)
            more = message.get("more_body", False)
        await self._pieces.put(None)
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    async def pieces(self) -> AsyncIterator[bytes]:
        """All of them, in order."""
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def _next(self) -> Message:
        receiving = asyncio.ensure_future(self._receive())
        try:
            while True:
                before = self._at_rest()
                done, _ = await asyncio.wait({receiving}, timeout=self._timeout)
                if done:
                    return receiving.result()
                if before is not None and self._at_rest() == before:
                    raise BodyTimeout(
                        f"nothing came for {self._timeout:g} s (--body-timeout), and all that came before is "
                        "answered"
                    )
        finally:
            receiving.cancel()
