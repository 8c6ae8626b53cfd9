"""`POST /score`: loglikelihoods of continuations given contexts."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.errors import ModelNotFound
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.answer import ScoreAnswer
from mlxscore_server.routes.chosen import Chosen
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.run import SCORING_ERRORS, Salted, run
from mlxscore_server.settings import Settings

router = APIRouter()

_PARIS: dict[str, Any] = {
    "id": 7042,
    "text": " Paris",
    "bytes": [32, 80, 97, 114, 105, 115],
    "logprob": -0.2580829858779907,
}
_EXAMPLE: dict[str, Any] = {
    "id": "score-0d7c9f5e8a4b4c0f9a51a2f6f3b1c2d3",
    "object": "score",
    "created": 1767225600,
    "model": "SmolLM2-135M-Instruct",
    "system_fingerprint": "fp-41965cd1b145-float32-head.float32-mlx0.32.4-cpu",
    "results": [
        {
            "index": 0,
            "id": "q1",
            "context_tokens": 5,
            "truncated_tokens": 0,
            "scores": [
                {
                    "index": 0,
                    "loglikelihood": -0.2580829858779907,
                    "is_greedy": True,
                    "num_tokens": 1,
                    "num_bytes": 6,
                    "num_chars": 6,
                    "merged_boundary": False,
                    "tokens": [{**_PARIS, "rank": 1, "top": [_PARIS]}],
                }
            ],
        }
    ],
    "usage": {"prompt_tokens": 6, "total_tokens": 6, "computed_tokens": 5, "cached_tokens": 0},
}


@router.post(
    "/score",
    response_model=wire.ScoreResponse,
    summary="Score continuations of contexts",
    responses=documented(
        _EXAMPLE,
        ModelNotFound,
        *SCORING_ERRORS,
    ),
    openapi_extra=body(wire.ScoreRequest),
)
async def score(request: Request) -> Response:
    """The loglikelihood of each continuation given its context, and on demand each token's logprob,
    rank and the most likely alternatives. All of a request succeeds, or none of it."""
    return await run(request, _prepare)


def _prepare(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.ScoreRequest, raw, max_rows=settings.max_rows_per_request)
    chosen = Chosen(request, loaded, settings)
    items = chosen.encode(request.items)
    rows = [row for item in items for row in chosen.rows(item)]
    return ScoreAnswer(loaded.card, loaded.encoder.pieces, request, items, rows), request.cache_salt
