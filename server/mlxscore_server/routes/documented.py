"""What an endpoint may answer, for /openapi.json."""

from collections.abc import Container
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from mlxscore_client import wire
from mlxscore_server.errors import InvalidApiKey, MlxscoreError

_DESCRIPTIONS = {
    400: "A field is wrong; `param` names it.",
    401: "The API key is missing or not known.",
    404: "This server has another model.",
    408: "The body was not here within --body-timeout; the connection is closed.",
    413: "The body is larger than --max-request-bytes.",
    415: "The body is not said to be JSON, or is compressed in an unknown way.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "The model failed on this request.",
    503: "Loading, draining, or the scoring thread has ended.",
    504: "Not done within X-Request-Timeout or --request-timeout.",
}


def documented(example: object, *errors: type[MlxscoreError]) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses`: an example of success, and what may go wrong."""
    found: dict[int | str, dict[str, Any]] = {200: {"content": _json(example)}}
    for error in errors:
        description = _DESCRIPTIONS.get(error.status, HTTPStatus(error.status).phrase)
        body = wire.ErrorBody(message=description, type=error.type, code=error.code)
        found[error.status] = {
            "model": wire.ErrorResponse,
            "description": description,
            "content": _json(wire.ErrorResponse(error=body).model_dump()),
        }
    return found


def body(kind: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` for a body that is read by hand; app.py adds its schema to the components."""
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }


def declare_keys(document: dict[str, Any], open_paths: Container[str]) -> None:
    """Add to an OpenAPI document that all but `open_paths` need a key."""
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    refused = documented(None, InvalidApiKey)[401] | {
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}}
    }
    refused.pop("model")
    schema = {"$ref": "#/components/schemas/ErrorResponse"}
    refused["content"]["application/json"]["schema"] = schema
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in open_paths else [{"bearer": []}, {"header": []}]
            if path not in open_paths:
                operation["responses"]["401"] = refused


def _json(example: object) -> dict[str, Any]:
    return {"application/json": {"example": example}}
