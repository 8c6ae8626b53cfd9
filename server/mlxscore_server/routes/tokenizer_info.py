"""`GET /tokenizer_info`: the tokenizer's configuration. Only with --enable-tokenizer-info-endpoint."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from mlxscore_client import wire
from mlxscore_server.engine import Engine
from mlxscore_server.errors import NotReady
from mlxscore_server.routes.documented import documented

router = APIRouter()

_EXAMPLE: dict[str, Any] = {
    "clean_up_tokenization_spaces": False,
    "tokenizer_class": "TokenizersBackend",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "chat_template": "{% for message in messages %}...{% endfor %}",
    "add_bos_token": False,
    "model_max_length": 8192,
}


@router.get(
    "/tokenizer_info",
    response_model=wire.TokenizerInfo,
    summary="The tokenizer's configuration",
    responses=documented(_EXAMPLE, NotReady),
)
async def tokenizer_info(request: Request) -> Response:
    """Special tokens as text, the chat template, and what else the tokenizer's files state."""
    engine: Engine = request.app.state.engine
    return Response(to_json(engine.loaded.encoder.info), media_type="application/json")
