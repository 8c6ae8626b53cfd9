"""`GET /v1/models`: the resident model, what it takes and how it was checked."""

from fastapi import APIRouter, Request

from mlxscore_client import wire
from mlxscore_server.engine import Engine
from mlxscore_server.errors import ModelNotFound

router = APIRouter(prefix="/v1/models")


def _card(request: Request) -> wire.ModelCard:
    engine: Engine = request.app.state.engine
    return engine.loaded.card


@router.get("", summary="The served model")
async def models(request: Request) -> wire.ModelList:
    """A list of one: the model that is resident."""
    return wire.ModelList(data=[_card(request)])


@router.get("/{name:path}", summary="The served model by name")
async def model(name: str, request: Request) -> wire.ModelCard:
    """The resident model's card; 404 for any other name."""
    card = _card(request)
    if name != card.id:
        raise ModelNotFound(f"model {name!r} is not served here; {card.id!r} is", param="model")
    return card
