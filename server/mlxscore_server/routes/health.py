"""`GET /health`: whether the scoring thread answers; never waits behind it."""

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.engine import Engine

router = APIRouter()


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
