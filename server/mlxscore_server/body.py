"""A request's body: only JSON, never more than the limit, refused in the sender's own terms."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect

from mlxscore_client import wire
from mlxscore_server import large_json
from mlxscore_server.engine import Engine
from mlxscore_server.errors import BodyTimeout, BodyTooLarge, InvalidRequest, WrongContentType
from mlxscore_server.refusals import check_rows
from mlxscore_server.settings import Settings
from mlxscore_server.unpacked import ENCODINGS, unpack

M = TypeVar("M", bound=BaseModel)

LINES = (
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
)
"""What the Content-Type of lines of JSON may be."""

_MAX_QUOTED = 60  # characters of a value in a message
_MAX_MESSAGE = 500
_MAX_NOTED = 200  # names
# So few bytes are unpacked to 4 MiB at most: in milliseconds.
_SHORT_PACKED = 4096
# So many bytes are read at once, in tens of milliseconds whatever they hold.
_LARGE = 2**18

_noted: set[str] = set()

log = logging.getLogger("mlxscore")


async def read_json(request: Request, engine: Engine, settings: Settings) -> bytearray:
    """All of the body, unpacked. Raises WrongContentType, BodyTooLarge, BodyTimeout, ClientDisconnect,
    and InvalidRequest where it cannot be unpacked.

    Counted while it comes in: a sender may state no length. One that states too large a length is
    refused before any of it is read; envelope.py ends the connection of one who sends on.
    """
    max_bytes = settings.max_request_bytes
    encoding = _check_headers(request)
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > max_bytes:
        raise _too_large(stated, max_bytes)
    timeout = asyncio.timeout(settings.body_timeout)
    try:
        async with timeout:
            body = await _read(request, max_bytes)
    except TimeoutError:
        if not timeout.expired():
            raise
        raise BodyTimeout(
            f"the body was not here within {settings.body_timeout:g} s (--body-timeout)"
        ) from None
    if encoding == "identity":
        return body
    return await engine.encode(unpack, body, encoding, max_bytes, short=len(body) <= _SHORT_PACKED)


async def _read(request: Request, max_bytes: int) -> bytearray:
    body = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > max_bytes:
            raise _too_large(f"at least {len(body)}" if more else str(len(body)), max_bytes)
    return body


def _check_headers(request: Request) -> str:
    """How the body is encoded. Raises WrongContentType."""
    given = request.headers.get("content-type")
    if given is None and "origin" in request.headers:
        # A page of any site may send this without being asked for leave, and JSON it may not.
        raise WrongContentType("a page's request must state Content-Type: application/json")
    kind = "application/json" if given is None else _kind_of(given)
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise WrongContentType(
            f"the body must be JSON with Content-Type: application/json, not {_quoted(given)}"
        )
    encoding = request.headers.get("content-encoding", "identity")
    named = encoding.strip().lower()
    if named not in ("identity", *ENCODINGS):
        raise WrongContentType(
            f"the body's Content-Encoding may be {' or '.join(ENCODINGS)}, or none, not "
            f"{_quoted(encoding)}"
        )
    return named


def check_lines(request: Request) -> None:
    """Whether the body is said to be lines of JSON. Raises WrongContentType."""
    given = request.headers.get("content-type", "")
    if _kind_of(given) not in LINES:
        raise WrongContentType(
            f"the body must be lines of JSON with Content-Type: {LINES[0]}, not {_quoted(given)}"
        )
    if (encoding := request.headers.get("content-encoding", "identity")).lower() != "identity":
        raise WrongContentType(f"a stream may not be compressed, as {_quoted(encoding)} is")


def _kind_of(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _too_large(size: str, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has {size} bytes, the limit (--max-request-bytes) is {max_bytes}; "
        "send fewer items at once"
    )


def parse(
    kind: type[M],
    body: bytes | bytearray,
    *,
    max_rows: int | None = None,
    called: str = "the body",
) -> M:
    """The body as a request. Raises InvalidRequest for the first thing that is wrong with it.

    `max_rows` (--max-rows-per-request): what is far too long is refused before it is looked at closely.
    `called`: what errors call it.
    """
    try:
        if len(body) <= _LARGE:
            request = kind.model_validate_json(body)
        else:
            request = kind.model_validate(_read_large(body, max_rows, called))
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False), called) from None
    if isinstance(request, wire.ForeignRequest):
        _note_ignored(kind, request.model_extra or {})
    return request


def _read_large(body: bytes | bytearray, max_rows: int | None, called: str) -> object:
    try:
        found: object = large_json.read(body)
    except ValueError as error:
        raise InvalidRequest(f"{called} is not valid JSON: {error}", code="invalid_json") from None
    if isinstance(found, dict) and max_rows is not None:
        fields = cast(dict[str, object], found)
        for name, value in fields.items():
            if isinstance(value, list):
                listed = cast(list[object], value)
                # Each item, prompt, document or label makes a row, or several; a list of numbers is one.
                if listed and not isinstance(listed[0], int | float):
                    check_rows(len(listed), max_rows, param=name)
    return cast(object, found)


def parse_query(kind: type[M], query: Iterable[tuple[str, str]]) -> M:
    """The fields of a request that stand in its URL: texts as they are, all else as JSON.

    Raises InvalidRequest for the first thing that is wrong with it.
    """
    schema: dict[str, object] = kind.model_json_schema()["properties"]
    fields: dict[str, object] = {}
    for name, value in query:
        if name in fields:
            raise InvalidRequest(f"{_quoted(name)} is given twice in the query", param=name[:60])
        is_text = "'type': 'string'" in str(schema.get(name, ""))
        fields[name] = value if is_text else _json_or_text(value)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False), "the query") from None


def _json_or_text(value: str) -> object:
    try:
        return from_json(value)
    except ValueError:
        return value


def _note_ignored(kind: type[BaseModel], extra: Mapping[str, object]) -> None:
    """Name each field that is not known in the log, the first time it comes."""
    for name in extra:
        # Anything else may be text that went astray, which the log is not to hold.
        named = name if name.isidentifier() and len(name) <= _MAX_QUOTED else "(no plain name)"
        noted = f"{kind.__name__} {named!r}"
        # A bound, since anybody can make up names.
        if noted not in _noted and len(_noted) < _MAX_NOTED:
            _noted.add(noted)
            log.info("ignored in a request: %s is not a field that this server knows", noted)


def _invalid(found: list[ErrorDetails], called: str = "the body") -> InvalidRequest:
    first, others = found[0], len(found) - 1
    if first["type"] == "json_invalid":
        what = first["msg"].removeprefix("Invalid JSON: ")
        return InvalidRequest(f"{called} is not valid JSON: {what}", code="invalid_json")
    param = _path(first["loc"])
    if first["type"] == "no_context":  # found by looking at the whole item
        param += ".context"
    message = _sentence(param, first, called)
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}..."
    if others:
        message += f" (and {others} more)"
    if first["type"] == "unknown_field":
        name = str(first.get("ctx", {}).get("name", ""))[1:-1]  # it comes in quotes
        if name.isidentifier() and len(name) <= _MAX_QUOTED:  # else it would not read as a path
            param = f"{param}.{name}" if param else name
    return InvalidRequest(message, param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """A place in the body as its sender would write it: `items[3].continuations[1]`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in wire.UNION_TAGS:
            path += f".{part}" if path else part
    return path


def _sentence(param: str, error: ErrorDetails, called: str) -> str:
    where, got = param or called, error["input"]
    match error["type"]:
        case "missing":
            return f"{where} is required"
        case "model_type":
            return f"{where} must be a JSON object, not {_kind(got)}"
        case "list_type":  # which pydantic itself calls an array only where it has read the JSON
            return f"{where} should be a valid array, not {_quoted(got)}"
        case "too_short":
            return f"{where} must not be empty"
        case "unknown_field":
            return f"{param}: {error['msg']}" if param else error["msg"]
        case "one_of":
            return f"{where}: {error['msg']}"
        case "lone_surrogate" | "not_json" | "no_context":
            return f"{where} {error['msg']}"
        case _:
            return f"{where} {error['msg'].removeprefix('Input ')}, not {_quoted(got)}"


def _quoted(got: object) -> str:
    """A short value as it is, a long one cut, else what kind of value it is."""
    if isinstance(got, bool) or got is None or not isinstance(got, int | float | str):
        return _kind(got)
    shown = repr(got[: _MAX_QUOTED + 1] if isinstance(got, str) else got)
    return shown if len(shown) <= _MAX_QUOTED else f"{shown[:_MAX_QUOTED]}..."


def _kind(got: object) -> str:
    if got is None or isinstance(got, bool):
        return {None: "null", True: "true", False: "false"}[got]
    if isinstance(got, list | tuple):
        return "an array"
    if isinstance(got, dict):
        return "an object"
    return "a string" if isinstance(got, str) else "a number"
