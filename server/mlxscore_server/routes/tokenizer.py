"""`POST /tokenize`, `POST /detokenize`: as vLLM has them. Neither waits behind the model."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from mlxscore_client import wire
from mlxscore_server.body import parse, read_json
from mlxscore_server.chat import ChatOptions
from mlxscore_server.disconnect import while_connected
from mlxscore_server.engine import Engine
from mlxscore_server.errors import (
    BodyTimeout,
    BodyTooLarge,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    RequestExpired,
    WrongContentType,
)
from mlxscore_server.refusals import unsupported
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.models import check_name
from mlxscore_server.settings import Settings
from mlxscore_server.terms import Terms
from mlxscore_server.timing import stage

router = APIRouter()

_ERRORS = (
    InvalidRequest,
    ModelNotFound,
    BodyTimeout,
    BodyTooLarge,
    WrongContentType,
    NotReady,
    RequestExpired,
)

# A body of this many bytes is encoded by threads that longer ones never reach. Not on the event loop:
# 4 KiB of text take 1.2 ms (prose) to 6 ms (digits) there, and a hop to a thread takes 0.07 ms
# (SmolLM2's tokenizer, one core of the development machine).
_SHORT_BYTES = 64 * 2**10

_UNSUPPORTED = ("chat_template", "tools", "media_io_kwargs", "mm_processor_kwargs")

_TOKENIZED: dict[str, Any] = {
    "count": 5,
    "max_model_len": 8192,
    "tokens": [504, 3575, 282, 4649, 314],
    "token_strs": ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"],
}


@router.post(
    "/tokenize",
    response_model=wire.TokenizeResponse,
    summary="Text or messages to token ids",
    responses=documented(_TOKENIZED, *_ERRORS),
    openapi_extra=body(wire.TokenizeRequest),
)
async def tokenize(request: Request) -> Response:
    """The token ids of a text, or of a conversation through the model's chat template."""
    return await _run(request, _tokenize)


@router.post(
    "/detokenize",
    response_model=wire.DetokenizeResponse,
    summary="Token ids to text",
    responses=documented({"prompt": "The capital of France"}, *_ERRORS),
    openapi_extra=body(wire.DetokenizeRequest),
)
async def detokenize(request: Request) -> Response:
    """The text that token ids stand for."""
    return await _run(request, _detokenize)


async def _run(request: Request, answer: Callable[[bytearray, Loaded], bytes]) -> Response:
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    loaded = engine.loaded  # 503 while loading, before any of the body is read
    async with Terms.of(request, settings).deadline():
        with stage("read"):
            raw = await read_json(request, engine, settings)
        work = engine.encode(answer, raw, loaded, short=len(raw) <= _SHORT_BYTES)
        with stage("tokenise"):
            content = await while_connected(request, work)
    return Response(content, media_type="application/json")


def _tokenize(raw: bytearray, loaded: Loaded) -> bytes:
    request = parse(wire.TokenizeRequest, raw)
    encoder = loaded.encoder
    check_name(request.model, loaded.card, "model")
    for name in _UNSUPPORTED:
        if getattr(request, name):
            raise unsupported(name, "the model's own chat template is used, for text only")
    if request.messages is not None:
        text = encoder.chat.render(request.messages, ChatOptions.of(request))
    else:
        assert request.prompt is not None, "this is a bug: exactly one of the two is given"
        text = request.prompt
    special = request.add_special_tokens
    if special is None:
        special = request.messages is None
    (ids,) = encoder.encode_prompts([text], add_special_tokens=special)
    return to_json(
        {
            "count": len(ids),
            "max_model_len": encoder.max_model_len,
            "tokens": ids.tolist(),
            "token_strs": encoder.token_strs(ids) if request.return_token_strs else None,
        }
    )


def _detokenize(raw: bytearray, loaded: Loaded) -> bytes:
    request = parse(wire.DetokenizeRequest, raw)
    check_name(request.model, loaded.card, "model")
    ids = loaded.encoder.verbatim(request.tokens, "tokens")
    return to_json({"prompt": loaded.encoder.decode(ids)})
