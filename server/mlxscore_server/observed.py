"""Around the whole application: each request is timed, counted, logged and traced when it is over."""

import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxscore_server import timing
from mlxscore_server.finished import CLIENT_LEFT, UNKNOWN, Finished, log_request
from mlxscore_server.metrics import Metrics
from mlxscore_server.timing import Span
from mlxscore_server.tracing import Tracing

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observed:
    """ASGI middleware. Outermost: it sees what all others answer."""

    def __init__(
        self, app: ASGIApp, routes: Sequence[Route], metrics: Metrics, tracing: Tracing | None
    ) -> None:
        """`routes` are all that there are: what is asked for beside them could be anything, and has one
        name for all."""
        self._app = app
        self._plain = frozenset(route.path for route in routes if not route.param_convertors)
        self._others = [route for route in routes if route.param_convertors]
        self._metrics, self._tracing = metrics, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        timed = timing.begin()
        status, request_id, answering = CLIENT_LEFT, "", None

        async def noted(message: Message) -> None:
            nonlocal status, request_id, answering
            if message["type"] == "http.response.start":
                status, answering = int(message["status"]), time.monotonic()
                headers = MutableHeaders(scope=message)
                request_id = headers.get("X-Request-Id", "")
                headers["Server-Timing"] = timed.header()
            await send(message)

        self._metrics.begin()
        try:
            await self._app(scope, receive, noted)
        finally:
            if answering is not None:
                timed.note(Span("respond", answering, time.monotonic()))
            method = scope["method"]
            client = scope.get("client")
            request = Finished(
                id=request_id,
                method=method if method in _METHODS else "OTHER",
                route=self._route(scope["path"]),
                status=status,
                client=client[0] if client else "",
                tenant=scope.get("state", {}).get("tenant"),
                timing=timed,
                seconds=timed.seconds,
            )
            self._metrics.end(request)
            log_request(request)
            if self._tracing is not None:
                self._tracing.record(request, Headers(scope=scope))

    def _route(self, path: str) -> str:
        """Not from the router: it may not have been asked."""
        if path in self._plain:
            return path
        for route in self._others:
            if route.path_regex.match(path):
                return route.path_format
        return UNKNOWN
