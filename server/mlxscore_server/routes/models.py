"""`GET /v1/models`: the resident model, what it takes and how it was checked."""

from typing import Any

from fastapi import APIRouter, Request

from mlxscore_client import wire
from mlxscore_server.engine import Engine
from mlxscore_server.errors import ModelNotFound, NotReady
from mlxscore_server.routes.documented import documented

router = APIRouter(prefix="/v1/models")

_EXAMPLE: dict[str, Any] = {
    "id": "SmolLM2-135M-Instruct",
    "object": "model",
    "created": 1767225600,
    "owned_by": "mlxscore",
    "root": "SmolLM2-135M-Instruct",
    "revision": None,
    "max_model_len": 8192,
    "dtype": "float32",
    "head_dtype": "float32",
    "quantization": None,
    "vocab_size": 49152,
    "adds_bos": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_logprobs": 20,
    "system_fingerprint": "fp-41965cd1b145-float32-head.float32-mlx0.32.4-cpu",
    "self_check": {
        "padding": "left-padded",
        "max_error": 4.8e-06,
        "mean_error": 1.1e-06,
        "reason": None,
    },
}


def card(request: Request) -> wire.ModelCard:
    """The resident model's; raises NotReady while it loads."""
    engine: Engine = request.app.state.engine
    return engine.loaded.card


def check_name(asked: str | None, card: wire.ModelCard, param: str | None = None) -> None:
    """Raise ModelNotFound for any other model than the resident one; None is whichever that is."""
    if asked is not None and asked != card.id:
        raise ModelNotFound(
            f"model {asked[:100]!r} is not served here; {card.id!r} is", param=param
        )


@router.get(
    "",
    summary="The served model",
    responses=documented({"object": "list", "data": [_EXAMPLE]}, NotReady),
)
async def models(request: Request) -> wire.ModelList:
    """A list of one: the model that is resident."""
    return wire.ModelList(data=[card(request)])


@router.get(
    "/{name:path}",
    summary="The served model by name",
    responses=documented(_EXAMPLE, ModelNotFound, NotReady),
    # By hand: for a parameter that FastAPI reads, it documents an error shape of its own.
    openapi_extra={
        "parameters": [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    },
)
async def model(request: Request) -> wire.ModelCard:
    """The resident model's card; 404 for any other name."""
    found = card(request)
    check_name(str(request.path_params["name"]), found)
    return found
