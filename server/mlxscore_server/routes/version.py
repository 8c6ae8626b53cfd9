"""`GET /version`: which release answers, whatever state it is in."""

from fastapi import APIRouter

from mlxscore_client import wire
from mlxscore_client.version import __version__
from mlxscore_server.routes.documented import documented

router = APIRouter()


@router.get(
    "/version",
    summary="The server's version",
    responses=documented({"version": __version__}),
)
async def version() -> wire.Version:
    """Of the installed mlxscore."""
    return wire.Version(version=__version__)
