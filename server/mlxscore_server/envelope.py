"""Errors as JSON, all in one envelope; and around everything, so that every answer is well-formed."""

import asyncio
import logging
import math
import re
import traceback
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
LINGER_BYTES = 64 * 2**20
_LINGER_SECONDS = 5.0


def respond(error: MlxscoreError) -> Response:
    """The answer to a request that failed with `error`."""
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.closes:
        headers["Connection"] = "close"
    body = wire.ErrorBody(
        message=error.message, type=error.type, param=error.param, code=error.code
    )
    response = envelope(error.status, body, headers)
    for challenge in error.challenges:
        # Each in a header of its own: Chromium asks for no password where two stand in one.
        response.headers.append("WWW-Authenticate", challenge)
    return response


def envelope(status: int, body: wire.ErrorBody, headers: Mapping[str, str]) -> Response:
    """`{"error": {...}}` with a status."""
    content = wire.ErrorResponse(error=body).model_dump_json()
    return Response(content, status, dict(headers), media_type="application/json")


class Envelope:
    """ASGI middleware around all the rest: the request's id, what nothing inside has caught, and an
    end to bodies that nobody reads."""

    def __init__(
        self, app: ASGIApp, max_request_bytes: int, *, log_request_text: bool = False
    ) -> None:
        self._app = app
        self._max_request_bytes = max_request_bytes
        self._log_request_text = log_request_text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("X-Request-Id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        started = closing = False
        # The rest of a body of a fair length is thrown away by uvicorn; of any other, more may come
        # than anyone should read.
        endless, unread = self._is_endless(scope), True

        async def counted() -> Message:
            nonlocal unread
            message = await receive()
            # Absent once the sender has left.
            unread = message.get("more_body", False)
            return message

        async def signed(message: Message) -> None:
            nonlocal started, closing
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                closing = (endless and unread) or headers.get("Connection") == "close"
                started = True
                headers["X-Request-Id"] = request_id
                headers["Date"] = formatdate(usegmt=True)
                if closing:
                    headers["Connection"] = "close"
            elif closing and unread and not message.get("more_body", False):
                # To close at once would reset the connection, and the answer would be lost with it.
                await send({**message, "more_body": True})
                await _linger(receive)
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        try:
            await self._app(scope, counted, signed)
        except ClientDisconnect:
            log.debug("%s: the client has left", request_id)
        except asyncio.CancelledError:
            # Only the end of the server cancels a request, and this is the outermost frame of one.
            if not started:
                stopping = EngineStopped("the server is shutting down")
                await respond(stopping)(scope, receive, signed)
        except Exception as error:
            where = trace(error, with_messages=self._log_request_text)
            log.error("%s: %s %r failed\n%s", request_id, scope["method"], scope["path"], where)
            if started:  # the connection must break; uvicorn logs whatever it is given
                raise _HalfAnswer("half an answer is out") from None
            await _internal_error()(scope, receive, signed)

    def _is_endless(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        stated = headers.get("Content-Length", "")
        too_long = stated.isdecimal() and int(stated) > self._max_request_bytes
        return too_long or "Transfer-Encoding" in headers


async def _linger(receive: Receive) -> None:
    """Throw away what a refused sender still sends, for a while: it is to read its answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            left, more = LINGER_BYTES, True
            while more and left > 0:
                message = await receive()
                more = message.get("more_body", False)
                left -= len(message.get("body", b""))


class _HalfAnswer(Exception):
    """An answer that has begun cannot be ended well."""


def trace(error: BaseException, *, with_messages: bool) -> str:
    """Where an error was raised, and what it came from. Messages may quote the request."""
    if with_messages:
        return "".join(traceback.format_exception(error)).rstrip()
    kind = type(error)
    lines = ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    lines.append(f"{kind.__module__}.{kind.__qualname__} (--log-request-text shows what it says)")
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        lines.insert(0, f"{trace(before, with_messages=False)}\n\nand from that:\n\n")
    return "".join(lines)


def _internal_error() -> Response:
    body = wire.ErrorBody(
        message="something went wrong inside the server; its log says what, under this answer's "
        "X-Request-Id",
        type="server_error",
        code="internal_error",
    )
    return envelope(500, body, {})
