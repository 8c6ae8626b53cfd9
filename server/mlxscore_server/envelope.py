"""Errors as JSON: one envelope for all of them, and pydantic's findings as errors of ours."""

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from mlxscore_client import wire
from mlxscore_server.errors import InvalidRequest, MlxscoreError

log = logging.getLogger("mlxscore")


def body_of(error: MlxscoreError) -> bytes:
    """`{"error": {...}}` as JSON."""
    body = wire.ErrorBody(
        message=error.message, type=error.type, param=error.param, code=error.code
    )
    return wire.ErrorResponse(error=body).model_dump_json().encode()


def headers_of(error: MlxscoreError) -> dict[str, str]:
    """`Retry-After` in whole seconds, where coming back helps."""
    if error.retry_after is None:
        return {}
    return {"Retry-After": str(max(1, round(error.retry_after)))}


def invalid_request(error: ValidationError) -> InvalidRequest:
    """What pydantic found, as one error that names the first field."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    param = path_of(first["loc"])
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    if not param and first["type"] == "model_type":
        return InvalidRequest("the body must be a JSON object", code="invalid_json")
    where = f"{param}: " if param else ""
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    code = "missing_field" if first["type"] == "missing" else None
    return InvalidRequest(f"{where}{first['msg']}{others}", param=param or None, code=code)


def path_of(location: Sequence[Any]) -> str:
    """A location as a path, such as `items[3].continuations[1]`; tags of unions are left out."""
    path = ""
    for i, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in wire.UNION_TAGS and i:
            # Only branches of a union are called so; no field of a request is.
            continue
        else:
            path += f".{part}" if path else str(part)
    return path
