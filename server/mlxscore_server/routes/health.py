"""`GET /health`, `GET /ready`: whether the scoring thread answers; neither waits behind it."""

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.engine import Engine

router = APIRouter()

# Seconds. A model loads in seconds to minutes; what drains or has failed must be started anew.
_RETRY_AFTER: dict[wire.HealthState, str] = {"loading": "1", "draining": "5", "failed": "5"}


# TRL's client waits on the path with a slash.
@router.get("/health/", include_in_schema=False)
@router.get(
    "/health",
    response_model=wire.Health,
    responses={
        200: {"content": {"application/json": {"example": {"status": "ok"}}}},
        503: {
            "model": wire.Health,
            "description": "Not ready: loading, draining or failed.",
            "content": {"application/json": {"example": {"status": "loading"}}},
        },
    },
    summary="Whether the server scores",
)
async def health(request: Request) -> Response:
    """200 only if the scoring thread is there and takes work."""
    engine: Engine = request.app.state.engine
    state = engine.state
    return Response(
        wire.Health(status=state).model_dump_json(),
        status_code=200 if state == "ok" else 503,
        media_type="application/json",
    )


@router.get(
    "/ready",
    response_model=wire.Health,
    responses={
        200: {"content": {"application/json": {"example": {"status": "ok"}}}},
        503: {
            "model": wire.Health,
            "description": "Not now: loading, draining or failed; Retry-After says when to ask again.",
            "content": {"application/json": {"example": {"status": "loading"}}},
        },
    },
    summary="Whether requests should be sent here",
)
async def ready(request: Request) -> Response:
    """200 if the server takes new work, for load balancers."""
    answer = await health(request)
    if answer.status_code != 200:
        engine: Engine = request.app.state.engine
        answer.headers["Retry-After"] = _RETRY_AFTER[engine.state]
    return answer
