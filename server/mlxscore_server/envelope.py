"""Errors as JSON, all in one envelope; and around everything, so that every answer is well-formed."""

import asyncio
import logging
import math
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxscore_client import wire
from mlxscore_server.errors import EngineStopped, MlxscoreError

log = logging.getLogger("mlxscore")

# What a header and a line of the log can hold without harm; another id is replaced by one of ours.
_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")

# What a refused sender may still send while it reads its answer.
_LINGER_BYTES = 64 * 2**20
_LINGER_SECONDS = 5.0


def respond(error: MlxscoreError, *, body_unread: bool = False) -> Response:
    """The answer to a request that failed with `error`."""
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    body = wire.ErrorBody(
        message=error.message, type=error.type, param=error.param, code=error.code
    )
    return envelope(error.status, body, headers, body_unread=body_unread)


def envelope(
    status: int, body: wire.ErrorBody, headers: Mapping[str, str], *, body_unread: bool = False
) -> Response:
    """`{"error": {...}}` with a status."""
    content = wire.ErrorResponse(error=body).model_dump_json()
    kind = LastWord if body_unread else Response
    return kind(content, status, dict(headers), media_type="application/json")


class LastWord(Response):
    """An answer to someone who is still sending.

    To close at once would reset the connection, and the answer would be lost with it. So it is sent
    whole, what still comes in is thrown away for a while, and only then is the connection closed.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["Connection"] = "close"
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                left, more = _LINGER_BYTES, True
                while more and left > 0:
                    message = await receive()
                    more = message.get("more_body", False)  # absent once the sender has left
                    left -= len(message.get("body", b""))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Envelope:
    """ASGI middleware around all the rest: the request's id, and what nothing inside has caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("X-Request-Id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        started = False

        async def signed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers["Date"] = formatdate(usegmt=True)
            await send(message)

        try:
            await self._app(scope, receive, signed)
        except ClientDisconnect:
            log.debug("%s: the client has left", request_id)
        except asyncio.CancelledError:
            # Only the end of the server cancels a request, and this is the outermost frame of one.
            if not started:
                stopping = EngineStopped("the server is shutting down")
                await respond(stopping)(scope, receive, signed)
        except Exception:
            log.exception("%s: %s %s failed", request_id, scope["method"], scope["path"])
            if started:  # half an answer is out: the connection must break
                raise
            await _internal_error()(scope, receive, signed)


def _internal_error() -> Response:
    body = wire.ErrorBody(
        message="something went wrong inside the server; its log says what, under this answer's "
        "X-Request-Id",
        type="server_error",
        code="internal_error",
    )
    return envelope(500, body, {})
