"""What is no HTTP at all, refused in the same words as all else: never reaches the application."""

import re
import sys
import uuid
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlxscore_client import wire

_MAX_HEAD_BYTES = 16 * 1024  # as h11 has it while a head is incomplete
_MAX_HEADERS = 100
_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\n[ \t]")


class _Connection(h11.Connection):
    """h11's own, which takes a head of any size that comes at once, and one folded over lines."""

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            _check_head(self.trailing_data[0])
        return super().next_event()


def _check_head(received: bytes) -> None:
    end = _END_OF_HEAD.search(received)
    head = received[: end.end()] if end else received
    if len(head) > _MAX_HEAD_BYTES or head.count(b"\n") > _MAX_HEADERS + 2:
        raise h11.RemoteProtocolError(
            f"its head is too long (at most {_MAX_HEAD_BYTES} bytes, {_MAX_HEADERS} headers)",
            error_status_hint=_TOO_LARGE,
        )
    # Obsolete, and two parsers may take such a line for two different headers.
    if _FOLDED.search(head):
        raise h11.RemoteProtocolError("a header is folded over several lines")


class Protocol(H11Protocol):
    """uvicorn's own, with the envelope of every other error instead of its plain text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Connection(h11.SERVER, _MAX_HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in _answer():
                self.transport.write(self.conn.send(event) or b"")
        # Else an answer is under way, and two in one would be none.
        self.transport.close()


def _answer() -> list[h11.Event]:
    # uvicorn calls from where it has caught the error, and hands on no reason.
    error = sys.exception()
    why = str(error or "")
    too_large = getattr(error, "error_status_hint", None) == _TOO_LARGE
    status = _TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST
    body = wire.ErrorBody(
        message=f"this is not valid HTTP{f': {why}' if why else ''}",
        type="invalid_request_error",
        code="headers_too_large" if too_large else "invalid_http",
    )
    content = wire.ErrorResponse(error=body).model_dump_json().encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "X-Request-Id": uuid.uuid4().hex,
        "Date": formatdate(usegmt=True),
        "Connection": "close",
    }
    return [
        h11.Response(
            status_code=status, headers=list(headers.items()), reason=status.phrase.encode()
        ),
        h11.Data(data=content),
        h11.EndOfMessage(),
    ]
