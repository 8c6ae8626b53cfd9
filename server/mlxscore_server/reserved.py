"""Connections beyond --max-connections that are kept for those who watch the server."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxscore_server.access import OPEN_PATHS
from mlxscore_server.envelope import respond
from mlxscore_server.errors import TooManyConnections


class Reserved:
    """ASGI middleware: on such a connection what is open to all is answered, all else is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit: int | None = scope.get("state", {}).get("reserved")
        if limit is None:
            return await self._app(scope, receive, send)
        if scope["path"] not in OPEN_PATHS:
            return await respond(TooManyConnections.beyond(limit))(scope, receive, send)

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, last)
