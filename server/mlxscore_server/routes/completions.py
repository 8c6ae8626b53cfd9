"""`POST /v1/completions`: OpenAI's legacy endpoint, to echo a prompt with its logprobs."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.errors import ModelNotFound
from mlxscore_server.prompts import asked, encode_prompts
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.choices import CompletionAnswer
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.models import check_name
from mlxscore_server.routes.run import SCORING_ERRORS, Salted, run
from mlxscore_server.settings import Settings

router = APIRouter()

_EXAMPLE: dict[str, Any] = {
    "id": "cmpl-0d7c9f5e8a4b4c0f9a51a2f6f3b1c2d3",
    "object": "text_completion",
    "created": 1767225600,
    "model": "SmolLM2-135M-Instruct",
    "system_fingerprint": "fp-41965cd1b145-float32-head.float32-mlx0.32.4-cpu",
    "choices": [
        {
            "index": 0,
            "text": "The capital of France is Paris",
            "logprobs": {
                "tokens": ["The", " capital", " of", " France", " is", " Paris"],
                "token_logprobs": [None, -8.96, -0.42, -4.61, -1.02, -0.26],
                "top_logprobs": [
                    None,
                    {" first": -3.14, " capital": -8.96},
                    {" of": -0.42},
                    {" the": -1.87, " France": -4.61},
                    {",": -0.93, " is": -1.02},
                    {" Paris": -0.26},
                ],
                "text_offset": [0, 3, 11, 14, 21, 24],
            },
            "finish_reason": "length",
            "stop_reason": None,
        }
    ],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
        "computed_tokens": 5,
        "cached_tokens": 0,
    },
}


@router.post(
    "/v1/completions",
    response_model=wire.CompletionResponse,
    summary="Echo prompts with their logprobs",
    responses=documented(
        _EXAMPLE,
        ModelNotFound,
        *SCORING_ERRORS,
    ),
    openapi_extra=body(wire.CompletionRequest),
)
async def completions(request: Request) -> Response:
    """Each prompt's tokens with their logprobs (`echo`), and the most likely next token
    (`max_tokens: 1`). Logprobs are those of the model itself: temperature and its like do not touch
    them. All of a request succeeds, or none of it."""
    return await run(request, _prepare)


def _prepare(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.CompletionRequest, raw, max_rows=settings.max_rows_per_request)
    card = loaded.card
    check_name(request.model, card, "model")
    wanted = asked(request, max_logprobs=settings.max_logprobs, vocab_size=card.vocab_size)
    special = request.add_special_tokens
    prompts = encode_prompts(
        loaded.encoder,
        request,
        wanted,
        add_special_tokens=settings.completions_add_special_tokens if special is None else special,
    )
    return CompletionAnswer(card, loaded.encoder, request, wanted, prompts), request.cache_salt
