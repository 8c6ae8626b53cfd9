"""Reading a request's body: only JSON, never more than the limit, counted while reading."""

from fastapi import Request
from starlette.requests import ClientDisconnect

from mlxscore_server.errors import BodyTooLarge, WrongContentType

__all__ = ["ClientDisconnect", "read_json"]


async def read_json(request: Request, max_bytes: int) -> bytes:
    """The body's bytes. Raises WrongContentType, BodyTooLarge, ClientDisconnect.

    A body whose Content-Length is too large is refused before any of it is read.
    """
    _check_content_type(request.headers.get("content-type"))
    stated = request.headers.get("content-length")
    if stated is not None and stated.isdecimal() and int(stated) > max_bytes:
        raise _too_large(f"{int(stated)}", max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(f"more than {max_bytes}", max_bytes)
        body += chunk
    return bytes(body)


def _too_large(size: str, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has {size} bytes; the limit (--max-request-bytes) is {max_bytes}"
    )


def _check_content_type(header: str | None) -> None:
    if header is None:
        return
    kind = header.split(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise WrongContentType(f"the body must be application/json, not {kind or 'unnamed'}")
