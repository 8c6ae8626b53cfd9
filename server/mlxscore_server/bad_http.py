"""What is no HTTP at all, refused in the same words as all else: never reaches the application."""

import sys
import uuid
from email.utils import formatdate
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlxscore_client import wire

_REFUSED = HTTPStatus.BAD_REQUEST


class Protocol(H11Protocol):
    """uvicorn's own, with the envelope of every other error instead of its plain text."""

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in _answer():
                self.transport.write(self.conn.send(event) or b"")
        # Else an answer is under way, and two in one would be none.
        self.transport.close()


def _answer() -> list[h11.Event]:
    # uvicorn calls from where it has caught the error, and hands on no reason.
    why = str(sys.exception() or "")
    body = wire.ErrorBody(
        message=f"this is not valid HTTP{f': {why}' if why else ''}",
        type="invalid_request_error",
        code="invalid_http",
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
            status_code=_REFUSED, headers=list(headers.items()), reason=_REFUSED.phrase.encode()
        ),
        h11.Data(data=content),
        h11.EndOfMessage(),
    ]
