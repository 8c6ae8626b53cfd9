"""`POST /v1/score` and `POST /generative_scoring`: how likely is each label to come next?"""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.contexts import label_contexts
from mlxscore_server.errors import InvalidRequest, ModelNotFound
from mlxscore_server.labels import LabelRows, label_rows
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.labelled import LabelAnswer, check_model
from mlxscore_server.routes.run import SCORING_ERRORS, Salted, run
from mlxscore_server.settings import Settings

router = APIRouter()

_HINT = '; truncation: "left" cuts the context\'s start'
_USAGE: dict[str, Any] = {
    "prompt_tokens": 10,
    "total_tokens": 10,
    "completion_tokens": 0,
    "computed_tokens": 10,
    "cached_tokens": 0,
}
_SCORES: dict[str, Any] = {
    "scores": [[0.684, 7.54e-06], [0.000255, 0.184]],
    "model": "SmolLM2-135M-Instruct",
    "usage": _USAGE,
    "object": "scoring",
}
_GENERATIVE: dict[str, Any] = {
    "id": "generative-scoring-0d7c9f5e8a4b4c0f9a51a2f6f3b1c2d3",
    "object": "list",
    "created": 1767225600,
    "model": "SmolLM2-135M-Instruct",
    "data": [
        {"index": 0, "object": "score", "score": 0.99999},
        {"index": 1, "object": "score", "score": 0.00138},
    ],
    "usage": _USAGE,
}


@router.post(
    "/v1/score",
    response_model=wire.LabelScoreResponse,
    summary="Probabilities of labels (SGLang)",
    responses=documented(_SCORES, ModelNotFound, *SCORING_ERRORS),
    openapi_extra=body(wire.LabelScoreRequest),
)
async def label_scores(request: Request) -> Response:
    """For each item the probability that each label follows the query and the item. Numbers are
    probabilities, not nats. All of a request succeeds, or none of it."""
    return await run(request, _prepare_scores)


@router.post(
    "/generative_scoring",
    response_model=wire.GenerativeScoringResponse,
    summary="Probability of the first label (vLLM)",
    responses=documented(_GENERATIVE, ModelNotFound, *SCORING_ERRORS),
    openapi_extra=body(wire.GenerativeScoringRequest),
)
async def generative_scoring(request: Request) -> Response:
    """For each item the probability of the first label, among the labels or among all tokens. All of a
    request succeeds, or none of it."""
    return await run(request, _prepare_generative)


def _prepare_scores(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.LabelScoreRequest, raw, max_rows=settings.max_rows_per_request)
    labelled = _rows(request, loaded, settings)

    def write(found: list[list[float]]) -> dict[str, Any]:
        return {"scores": found, "object": "scoring"}

    answer = LabelAnswer(loaded.card, labelled, softmax=request.apply_softmax, write=write)
    return answer, request.cache_salt


def _prepare_generative(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.GenerativeScoringRequest, raw, max_rows=settings.max_rows_per_request)
    if isinstance(request.items, list) and not request.items:
        raise InvalidRequest("items must not be empty", param="items")
    labelled = _rows(request, loaded, settings)

    def write(found: list[list[float]]) -> dict[str, Any]:
        return {
            "id": f"generative-scoring-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "data": [
                {"index": index, "object": "score", "score": first}
                for index, (first, *_) in enumerate(found)
            ],
        }

    answer = LabelAnswer(loaded.card, labelled, softmax=request.apply_softmax, write=write)
    return answer, request.cache_salt


def _rows(request: wire.LabelRequest, loaded: Loaded, settings: Settings) -> LabelRows:
    check_model(request.model, loaded.card)
    encoder = loaded.encoder
    if request.labels is not None:
        labels, labels_param = request.labels, "labels"
    else:
        labels_param = "label_token_ids"
        labels = encoder.verbatim(request.label_token_ids or [], labels_param).tolist()
    return label_rows(
        encoder,
        label_contexts(encoder, request, max_tokens=settings.max_queued_tokens),
        labels,
        labels_param=labels_param,
        add_special_tokens=request.add_special_tokens,
        truncation=request.truncation,
        hint=_HINT,
        max_tokens=settings.max_queued_tokens,
    )
