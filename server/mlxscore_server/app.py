"""The application: endpoints, and the one place where errors become statuses."""

import logging
import re
import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic.json_schema import models_json_schema
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxscore_client import wire
from mlxscore_server import __version__
from mlxscore_server.engine import Engine
from mlxscore_server.envelope import body_of, headers_of, path_of
from mlxscore_server.errors import InvalidRequest, MlxscoreError
from mlxscore_server.routes import health, models, score
from mlxscore_server.settings import Settings

log = logging.getLogger("mlxscore")

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": wire.ErrorResponse, "description": description}
    for status, description in {
        400: "A field is wrong; `param` names it.",
        404: "Another model's name, or an unknown path.",
        413: "The body is larger than --max-request-bytes.",
        415: "The body is not JSON.",
        429: "The queue is full; Retry-After says when to come back.",
        500: "The model failed on this request.",
        503: "Loading, draining, or the scoring thread has ended.",
    }.items()
}


class _HttpError(MlxscoreError):
    """An error of the framework's own: an unknown path, a wrong method."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, code={404: "not_found", 405: "method_not_allowed"}.get(status))
        self.status = status  # type: ignore[misc]
        self.type = "not_found_error" if status == 404 else "invalid_request_error"  # type: ignore[misc]


class _RequestId:
    """Puts X-Request-Id on every answer: the caller's own if it is sane, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, named)


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    """The application over an engine, which the caller starts and closes."""
    app = FastAPI(
        title="mlxscore",
        version=__version__,
        description="How likely does this language model find this text? Numbers are nats.",
        responses=_ERRORS,
    )
    app.state.engine = engine
    app.state.settings = settings
    for module in (score, health, models):
        app.include_router(module.router)
    app.add_middleware(_RequestId)
    app.add_exception_handler(MlxscoreError, _own_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(Exception, _any_error)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Add the schemas of bodies that are read by hand to /openapi.json."""
    made_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made_by_fastapi()
            _, request = models_json_schema(
                [(wire.ScoreRequest, "validation")], ref_template="#/components/schemas/{model}"
            )
            schema["components"]["schemas"].update(request["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi


def _respond(error: MlxscoreError) -> Response:
    headers = headers_of(error)
    if error.status == 413:
        # What is left of the body is not read; the connection cannot be used again.
        headers["Connection"] = "close"
    return Response(
        body_of(error),
        status_code=error.status,
        media_type="application/json",
        headers=headers,
    )


async def _own_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, MlxscoreError), "this is a bug: registered for our errors only"
    if error.status >= 500 and error.status != 503:
        log.error("%s: %s", type(error).__name__, error.message)
    return _respond(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "this is a bug: registered for HTTPException only"
    path = request.url.path
    message = {
        404: f"there is nothing at {path}; /docs lists what is",
        405: f"{request.method} is not for {path}",
    }.get(error.status_code, str(error.detail))
    response = _respond(_HttpError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "this is a bug: registered for it only"
    first = error.errors()[0]
    param = path_of([part for part in first["loc"] if part not in ("path", "query", "body")])
    return _respond(InvalidRequest(f"{param}: {first['msg']}", param=param or None))


async def _client_left(request: Request, _: Exception) -> Response:
    log.debug("%s %s: the client left", request.method, request.url.path)
    return Response(status_code=499)  # nobody reads it


async def _any_error(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _respond(MlxscoreError("something went wrong inside the server; its log says what"))
