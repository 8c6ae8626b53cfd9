"""The one place where httpx's errors, and answers that are errors, become ours."""

import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, cast

import httpx

from mlxscore_client.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    InvalidResponseError,
    MlxscoreError,
    NotFoundError,
    PayloadTooLargeError,
    RateLimitError,
    ServerUnavailableError,
)

_EXCERPT_CHARS = 200

_BY_STATUS: dict[int, type[APIStatusError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    413: PayloadTooLargeError,
    429: RateLimitError,
    503: ServerUnavailableError,
}
_RETRYABLE_STATUSES = frozenset({429, 503})


def status_error(
    response: httpx.Response, caller_path: Callable[[str], str] = str
) -> APIStatusError:
    """The error that an answer stands for: our envelope, or anything else that HTTP brings.

    `caller_path` turns a path in the body that was sent into one in the caller's arguments.
    """
    status = response.status_code
    body = _envelope(response)
    message, param = _text(body.get("message")), _text(body.get("param"))
    if message is None:
        message = f"HTTP {status} {response.reason_phrase} from {response.url}: {excerpt(response)}"
        if response.has_redirect_location:
            message = (
                f"HTTP {status}: {response.url} redirects to {response.headers['location']}; "
                "set base_url (or MLXSCORE_BASE_URL) to where the server is"
            )
    headers = dict(response.headers)
    if param is not None:
        theirs, param = param, caller_path(param)
        message = message.replace(theirs, param)
    return _class_of(status)(
        message,
        status=status,
        type=_text(body.get("type")),
        param=param,
        code=_text(body.get("code")),
        headers=headers,
        retry_after=_retry_after_seconds(headers),
        retryable=status in _RETRYABLE_STATUSES,
    )


def _class_of(status: int) -> type[APIStatusError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return InternalServerError
    return BadRequestError if status >= 400 else APIStatusError


def _envelope(response: httpx.Response) -> dict[str, Any]:
    """What stands under `error`; {} where there is none. Other servers put a plain text there."""
    try:
        body: Any = json.loads(response.content)
    except ValueError:
        return {}
    error: Any = cast(dict[str, Any], body).get("error") if isinstance(body, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return cast(dict[str, Any], error) if isinstance(error, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def excerpt(response: httpx.Response) -> str:
    """The start of a body on one line, for a message."""
    text = " ".join(response.text[: 4 * _EXCERPT_CHARS].split())
    return text[:_EXCERPT_CHARS] + "..." if len(text) > _EXCERPT_CHARS else text or "(empty body)"


def _retry_after_seconds(headers: dict[str, str]) -> float | None:
    """`Retry-After`, in seconds or as a date; None where it is missing or nonsense."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
        return float(value)
    until = _unix_time(value)
    if until is None:
        return None
    # Both dates come from one clock if the answer says when it was sent; ours may be off.
    sent = _unix_time(headers.get("date", ""))
    return max(0.0, until - (time.time() if sent is None else sent))


def _unix_time(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        # HTTP's dates are in GMT; one that does not say so would be taken for local time.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


_BROKEN = (
    "the connection to {url} broke before the answer came: {cause}; the server's log may say why"
)
_UNREACHABLE = (
    "cannot reach an mlxscore server at {url}: {cause}. Start one with `mlxscore-server`, or set "
    "base_url (or MLXSCORE_BASE_URL) to where yours is"
)
_SLOW = (
    "no answer from {url} within `timeout` ({cause}). The server may be busy: raise `timeout`, or "
    "lower max_items_per_request"
)
# Scoring changes nothing on the server, so it is safe to send again what may have arrived; but a
# server that is too slow would only be given the same work twice.
_BY_TRANSPORT_ERROR: tuple[
    tuple[type[httpx.RequestError], type[MlxscoreError], bool, str], ...
] = (  # error, ours, retryable, message; the first that fits
    (httpx.ConnectTimeout, APITimeoutError, True, _UNREACHABLE),
    (httpx.TimeoutException, APITimeoutError, False, _SLOW),
    (httpx.ConnectError, APIConnectionError, True, _UNREACHABLE),
    (httpx.ProxyError, APIConnectionError, True, _UNREACHABLE),
    (httpx.NetworkError, APIConnectionError, True, _BROKEN),
    (httpx.RemoteProtocolError, APIConnectionError, True, _BROKEN),
    (httpx.DecodingError, InvalidResponseError, False, "the answer of {url} is damaged: {cause}"),
    (httpx.RequestError, APIConnectionError, False, "the request to {url} failed: {cause}"),
)


@contextmanager
def httpx_errors_as_ours(url: str) -> Generator[None]:
    """Around one exchange with the server at `url`."""
    try:
        yield
    except httpx.RequestError as error:
        for theirs, ours, retryable, message in _BY_TRANSPORT_ERROR:
            if isinstance(error, theirs):
                cause = str(error) or type(error).__name__
                raise ours(message.format(url=url, cause=cause), retryable=retryable) from error
        raise
