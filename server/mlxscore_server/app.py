"""The application: endpoints, and the one place where errors become statuses."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route

from mlxscore_client import wire
from mlxscore_client.version import __version__
from mlxscore_server.access import OPEN_PATHS, Access
from mlxscore_server.engine import Engine
from mlxscore_server.envelope import Envelope, envelope, respond
from mlxscore_server.errors import MlxscoreError
from mlxscore_server.hosts import AllowedHosts, check_origins
from mlxscore_server.keys import Keys
from mlxscore_server.metrics import Metrics
from mlxscore_server.observed import Observed
from mlxscore_server.reserved import Reserved
from mlxscore_server.routes import (
    completions,
    generate,
    health,
    labels,
    metrics,
    models,
    page,
    rerank,
    score,
    score_stream,
    sequences,
    tokenizer,
    tokenizer_info,
    version,
)
from mlxscore_server.routes.documented import declare_keys
from mlxscore_server.settings import Settings
from mlxscore_server.tracing import Tracing

_DESCRIPTION = """How likely does this language model find this text? Numbers are in nats.

Every error has the body `{"error": {"message", "type", "param", "code"}}`. Every answer carries
`X-Request-Id`: yours if you sent one, else a new one; the server's log names it beside a failure."""


# Bodies that are read by hand, within bounds: their schemas are added to the components.
_BODIES: list[type[BaseModel]] = [
    wire.ScoreRequest,
    wire.StreamResult,
    wire.CompletionRequest,
    wire.GenerateRequest,
    wire.SequenceLogprobsRequest,
    wire.LabelScoreRequest,
    wire.GenerativeScoringRequest,
    wire.RerankRequest,
    wire.TokenizeRequest,
    wire.DetokenizeRequest,
]


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's, with the schemas of bodies that are read by hand."""
        if self.openapi_schema is None:
            made = super().openapi()
            _, request = models_json_schema(
                [(body, "validation") for body in _BODIES],
                ref_template="#/components/schemas/{model}",
            )
            made["components"]["schemas"].update(request["$defs"])
            if self.state.keys:
                declare_keys(made, OPEN_PATHS)
        return super().openapi()


def create_app(engine: Engine, settings: Settings, tracing: Tracing | None = None) -> FastAPI:
    """The application over an engine, which the caller starts and closes, as it closes `tracing`."""
    app = _App(
        title="mlxscore",
        version=__version__,
        description=_DESCRIPTION,
        # /docs is a page of ours (routes/page.py): FastAPI's own loads its scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect of a POST loses the body in some clients; a 404 is plain.
        redirect_slashes=False,
    )
    app.state.engine = engine
    app.state.settings = settings
    app.state.metrics = Metrics(engine, settings.max_queued_tokens)
    app.state.tracing = tracing
    modules = [
        score,
        score_stream,
        completions,
        generate,
        sequences,
        labels,
        rerank,
        health,
        models,
    ]
    modules += [tokenizer, version, page]
    if settings.enable_tokenizer_info_endpoint:
        modules.append(tokenizer_info)
    if settings.metrics_port is None:
        modules.append(metrics)
    routes = _routes(app.routes)
    for module in modules:
        routes += _routes(module.router.routes)
        app.include_router(module.router)
    app.state.keys = Keys.read(
        [key.get_secret_value() for key in settings.api_key], settings.api_key_file
    )
    hosts = AllowedHosts(settings.allowed_hosts, settings.host)
    # From the innermost to the outermost. A browser asks for leave to send a key without sending it.
    app.add_middleware(Access, keys=app.state.keys, hosts=hosts, page_paths=page.PATHS)
    app.add_middleware(Reserved)
    if settings.cors_origins:
        check_origins(settings.cors_origins)
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "Server-Timing", "X-Request-Id"],
        )
    app.add_middleware(
        Envelope,
        max_request_bytes=settings.max_request_bytes,
        log_request_text=settings.log_request_text,
    )
    # Nothing is answered that it does not see.
    app.add_middleware(Observed, routes=routes, metrics=app.state.metrics, tracing=tracing)
    app.add_exception_handler(MlxscoreError, _own_error)
    app.add_exception_handler(HTTPException, _http_error)
    return app


def _routes(routes: Sequence[BaseRoute]) -> list[Route]:
    return [route for route in routes if isinstance(route, Route)]


async def _own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MlxscoreError), "this is a bug: registered for our errors only"
    return respond(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router itself says: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException), "this is a bug: registered for HTTPException only"
    path, kind, code = request.url.path, "invalid_request_error", None
    message, headers = str(error.detail), error.headers or {}
    if error.status_code == 404:
        kind, code = "not_found_error", "path_not_found"
        message = f"there is nothing at {path[:200]!r}; /docs lists what is"
    elif error.status_code == 405:
        code = "method_not_allowed"
        message = f"{path!r} does not take {request.method}, only {headers.get('Allow')}"
    body = wire.ErrorBody(message=message, type=kind, code=code)
    return envelope(error.status_code, body, headers)
