"""`POST /score/stream`: any number of items as lines, each answered by a line."""

import json
from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import LINES, check_lines, parse_query
from mlxscore_server.engine import Engine
from mlxscore_server.errors import (
    BodyTimeout,
    InvalidRequest,
    MlxscoreError,
    ModelNotFound,
    NotReady,
    QueueFull,
    RequestExpired,
    WrongContentType,
)
from mlxscore_server.routes.documented import documented
from mlxscore_server.routes.run import salt_of, tenant_of
from mlxscore_server.routes.stream_items import Asking
from mlxscore_server.routes.streamed import Streamed
from mlxscore_server.settings import Settings
from mlxscore_server.terms import Terms

router = APIRouter()

_ERRORS: tuple[type[MlxscoreError], ...] = (
    InvalidRequest,
    ModelNotFound,
    BodyTimeout,
    WrongContentType,
    QueueFull,
    NotReady,
    RequestExpired,
)
_ITEM: dict[str, Any] = {
    "context": "The capital of France is",
    "continuation": " Paris",
    "id": "q1",
}
_SCORE: dict[str, Any] = {
    "index": 0,
    "loglikelihood": -0.2580829858779907,
    "is_greedy": True,
    "num_tokens": 1,
    "num_bytes": 6,
    "num_chars": 6,
    "merged_boundary": False,
}
_RESULT: dict[str, Any] = {
    "index": 0,
    "id": "q1",
    "context_tokens": 5,
    "truncated_tokens": 0,
    "scores": [_SCORE],
}


def _lines(name: str, example: object) -> dict[str, Any]:
    """Content of an OpenAPI document: lines, each of which is one of these."""
    schema = {"type": "string", "description": f"Lines, each a `{name}` as JSON."}
    return {LINES[0]: {"schema": schema, "example": json.dumps(example) + "\n"}}


def _errors() -> dict[int | str, dict[str, Any]]:
    """What may be answered in place of a stream: JSON, as of any endpoint."""
    found = documented(None, *_ERRORS)
    for response in found.values():
        # FastAPI would say of a model that it comes as lines too.
        if response.pop("model", None) is not None:
            schema = {"$ref": "#/components/schemas/ErrorResponse"}
            response["content"]["application/json"]["schema"] = schema
    return found


def _query() -> list[dict[str, Any]]:
    """The fields of `wire.StreamOptions` as parameters of an OpenAPI document."""
    properties: dict[str, dict[str, Any]] = wire.StreamOptions.model_json_schema()["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.pop("description"),
            "schema": schema,
        }
        for name, schema in properties.items()
    ]


@router.post(
    "/score/stream",
    response_class=Streamed,
    status_code=200,
    summary="Score any number of items, each a line, as they come",
    responses={
        **_errors(),
        200: {"content": _lines("StreamResult", _RESULT)},
    },
    openapi_extra={
        "parameters": _query(),
        "requestBody": {"required": True, "content": _lines("ScoreItem", _ITEM)},
    },
)
async def score_stream(request: Request) -> Response:
    """Items of `/score`, one a line, are scored while they come in; each line of the answer holds the
    `index` of its item (blank lines do not count) and its scores, or an error. A line without `index` says
    that the stream ends before its time: what is not answered then should be sent again."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    # No rows: 503 while loading, draining or after the end, before any of the body is read.
    await engine.score([])
    terms = Terms.of_stream(request)
    check_lines(request)
    options = parse_query(wire.StreamOptions, request.query_params.multi_items())
    salt = salt_of(tenant_of(request, settings), options.cache_salt)
    asking = Asking(options, engine.loaded, settings, salt)
    engine.room.check()
    return Streamed(engine, settings, asking, terms)
