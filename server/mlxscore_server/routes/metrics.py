"""`GET /metrics`: for Prometheus, on the main port or on one of its own."""

from fastapi import APIRouter, Request, Response
from starlette.applications import Starlette
from starlette.routing import Route

from mlxscore_server.metrics import Metrics

router = APIRouter()


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """All figures; never waits behind the model."""
    found: Metrics = request.app.state.metrics
    content, content_type = found.render(request.headers.get("Accept", ""))
    return Response(content, headers={"Content-Type": content_type})


def metrics_app(found: Metrics) -> Starlette:
    """An application of nothing else, for a port of its own."""
    app = Starlette(routes=[Route("/metrics", metrics)])
    app.state.metrics = found
    return app
