"""`POST /score`: loglikelihoods of continuations given contexts."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse, read_json
from mlxscore_server.disconnect import while_connected
from mlxscore_server.engine import Engine
from mlxscore_server.errors import (
    BodyTooLarge,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    QueueFull,
    ScoringFailed,
    WrongContentType,
)
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.answer import ScoreAnswer
from mlxscore_server.routes.documented import documented
from mlxscore_server.routes.models import check_name
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings

router = APIRouter()

# An answer of fewer numbers is written on the event loop: the hop to a thread would cost more.
_SMALL_ANSWER = 1000

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
        InvalidRequest,
        ModelNotFound,
        BodyTooLarge,
        WrongContentType,
        QueueFull,
        ScoringFailed,
        NotReady,
    ),
    # The body is read by hand, within bounds; app.py adds this schema to the components.
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/ScoreRequest"}},
            },
        }
    },
)
async def score(request: Request) -> Response:
    """The loglikelihood of each continuation given its context, and on demand each token's logprob,
    rank and the most likely alternatives. All of a request succeeds, or none of it."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    # No rows: 503 while loading, draining or after the end, before any of the body is read.
    await engine.score([])
    body = await read_json(request, settings.max_request_bytes)
    content = await while_connected(request, _score(engine, settings, body))
    return Response(content, media_type="application/json")


async def _score(engine: Engine, settings: Settings, body: bytearray) -> bytes:
    answer, rows = await engine.encode(_prepare, body, engine.loaded, settings.max_logprobs)
    try:
        scored = await engine.score(rows)
    except ScoringFailed as error:
        # Without a row it may have reached several callers, and stays as it is.
        if error.row is not None:
            error.param = answer.param(error.row)
        raise
    arguments = scored.scores, scored.computed_tokens, scored.cached_tokens
    if answer.numbers < _SMALL_ANSWER:
        return answer.to_json(*arguments)
    return await engine.encode(answer.to_json, *arguments)


def _prepare(body: bytearray, loaded: Loaded, max_logprobs: int) -> tuple[ScoreAnswer, list[Row]]:
    """From bytes to rows. Runs off the event loop: megabytes of text take seconds."""
    request = parse(wire.ScoreRequest, body)
    card, k = loaded.card, request.top_logprobs
    if request.model is not None:
        check_name(request.model, card, "model")
    if k > max_logprobs:
        raise InvalidRequest(
            f"top_logprobs is {k}, the limit (--max-logprobs) is {max_logprobs}",
            param="top_logprobs",
        )
    if k > card.vocab_size:
        raise InvalidRequest(
            f"top_logprobs is {k}, the model has {card.vocab_size} tokens", param="top_logprobs"
        )
    items = loaded.encoder.encode_items(
        request.items,
        add_special_tokens=request.add_special_tokens,
        boundary=request.boundary,
        truncation=request.truncation,
    )
    ranks = request.return_tokens or k > 0
    rows = [
        Row(pair.ids, pair.start, top_logprobs=k, ranks=ranks)
        for item in items
        for pair in item.pairs
    ]
    return ScoreAnswer(card, loaded.encoder.pieces, request, items, rows), rows
