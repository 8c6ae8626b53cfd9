"""`POST /generate`: SGLang's native endpoint, to score given prompts."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.generations import generations
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.generated import GenerateAnswer
from mlxscore_server.routes.run import SCORING_ERRORS, Salted, run
from mlxscore_server.settings import Settings

router = APIRouter()

_IS: list[Any] = [-0.4509451985359192, 314, None]
_PARIS: list[Any] = [-0.25808122754096985, 7042, None]
_DOT: list[Any] = [-0.3801373541355133, 30, None]
_EXAMPLE: list[dict[str, Any]] = [
    {
        "text": ".",
        "output_ids": [30],
        "meta_info": {
            "id": "0d7c9f5e8a4b4c0f9a51a2f6f3b1c2d3",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": 6,
            "completion_tokens": 1,
            "cached_tokens": 0,
            "input_token_logprobs": [[None, 4649, None], _IS, _PARIS],
            "output_token_logprobs": [_DOT],
            "input_top_logprobs": [None, [_IS], [_PARIS]],
            "output_top_logprobs": [[_DOT]],
        },
    }
]


@router.post(
    "/generate",
    response_model=wire.GenerateResponse | list[wire.GenerateResponse],
    summary="Score prompts as SGLang does",
    responses=documented(
        _EXAMPLE,
        *SCORING_ERRORS,
    ),
    openapi_extra=body(wire.GenerateRequest),
)
async def generate(request: Request) -> Response:
    """Each prompt's tokens with their logprobs (`return_logprob`, `logprob_start_len`), and the most
    likely next token (`max_new_tokens: 1`). Logprobs are those of the model itself: temperature and its
    like do not touch them. All of a request succeeds, or none of it."""
    return await run(request, _prepare)


def _prepare(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.GenerateRequest, raw, max_rows=settings.max_rows_per_request)
    answer = GenerateAnswer(
        generations(request, loaded.encoder, settings),
        loaded.encoder.pieces,
        single=request.single,
        with_text=bool(request.return_text_in_logprobs),
    )
    return answer, request.cache_salt
