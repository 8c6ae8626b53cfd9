"""On what terms a request is served: who asks, how urgent it is, how long it may take. From its headers."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from reprlib import repr as short_repr

from fastapi import Request

from mlxscore_server.errors import InvalidRequest, RequestExpired
from mlxscore_server.settings import Settings

_PRIORITY, _TIMEOUT = "X-Priority", "X-Request-Timeout"


@dataclass(frozen=True)
class Terms:
    caller: str
    """The API key's name, else the connection."""
    low: bool
    """Whether it goes behind all that is not: bulk work."""
    seconds: float | None
    """How long it may take."""
    set_by: str
    """What says so."""

    @staticmethod
    def of(request: Request, settings: Settings) -> "Terms":
        """Raises InvalidRequest, which names the header."""
        return Terms._of(request, settings.request_timeout, "normal")

    @staticmethod
    def _of(request: Request, seconds: float | None, priority: str) -> "Terms":
        tenant: str | None = request.scope.get("state", {}).get("tenant")
        client = request.client
        # Both have a mark, so that no key's name is another's address.
        caller = f"key {tenant}" if tenant is not None else f"at {client}"
        set_by = "--request-timeout"
        given = request.headers.get(_TIMEOUT)
        if given is not None and ((asked := _seconds(given)) < (seconds or math.inf)):
            seconds, set_by = asked, _TIMEOUT
        return Terms(caller, _is_low(request, priority), seconds, set_by)

    @staticmethod
    def of_stream(request: Request) -> "Terms":
        """Of a request without an end: low priority unless it says otherwise, and no time but its own."""
        return Terms._of(request, None, "low")

    @asynccontextmanager
    async def deadline(self) -> AsyncGenerator[None]:
        """Cancel what runs in here when the request's time is over, and raise RequestExpired."""
        timeout = asyncio.timeout(self.seconds)
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RequestExpired(
                f"not done within {self.seconds:g} s ({self.set_by}); nothing of it runs any more"
            ) from None


def _is_low(request: Request, default: str) -> bool:
    given = request.headers.get(_PRIORITY, default).strip().lower()
    if given not in ("low", "normal"):
        raise InvalidRequest(
            f"{_PRIORITY} must be low or normal, not {short_repr(given)}", param=_PRIORITY
        )
    return given == "low"


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise InvalidRequest(
            f"{_TIMEOUT} must be a number of seconds above 0, not {short_repr(given)}",
            param=_TIMEOUT,
        )
    return seconds
