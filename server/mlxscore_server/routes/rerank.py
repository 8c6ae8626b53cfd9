"""`POST /rerank`: documents sorted by how likely the model is to say yes to them."""

import uuid
from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.contexts import Context
from mlxscore_server.errors import InvalidRequest, ModelNotFound
from mlxscore_server.labels import label_rows
from mlxscore_server.question import question_for
from mlxscore_server.refusals import Made, unsupported
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.labelled import LabelAnswer, check_model
from mlxscore_server.routes.run import SCORING_ERRORS, Salted, run
from mlxscore_server.settings import Settings

router = APIRouter()

_EXAMPLE: dict[str, Any] = {
    "id": "rerank-0d7c9f5e8a4b4c0f9a51a2f6f3b1c2d3",
    "model": "SmolLM2-135M-Instruct",
    "usage": {
        "prompt_tokens": 111,
        "total_tokens": 111,
        "completion_tokens": 0,
        "computed_tokens": 111,
        "cached_tokens": 0,
    },
    "results": [
        {
            "index": 1,
            "document": {"text": "The capital of France is Paris."},
            "relevance_score": 0.288,
        }
    ],
}
# Of other servers: not null, and not false, each would change the scores.
_UNSUPPORTED = {
    "truncate_prompt_tokens": "documents are not cut here",
    "max_tokens_per_doc": "documents are not cut here",
    "raw_scores": "scores are probabilities here",
}


@router.post(
    "/rerank",
    response_model=wire.RerankResponse,
    summary="Sort documents by relevance to a query",
    responses=documented(
        _EXAMPLE,
        ModelNotFound,
        *SCORING_ERRORS,
    ),
    openapi_extra=body(wire.RerankRequest),
)
@router.post("/v1/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(request: Request) -> Response:
    """Asks the model, document by document, whether it answers the query. The score is the probability of
    yes against no; it is as good a judge as the model is. Also at /v1/rerank and /v2/rerank."""
    return await run(request, _prepare)


def _prepare(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.RerankRequest, raw, max_rows=settings.max_rows_per_request)
    check_model(request.model, loaded.card)
    for name, why in _UNSUPPORTED.items():
        value = getattr(request, name)
        if not (value is None or value is False):
            raise unsupported(name, why)
    question = question_for(loaded.card.root, settings.rerank_template)
    if request.instruction is not None and not question.takes_instruction:
        raise InvalidRequest(
            "instruction has no place in this server's --rerank-template", param="instruction"
        )
    texts = [document.text for document in request.documents]
    Made(settings.max_queued_tokens).add(
        len(texts),
        len(request.query) + len(request.instruction or ""),
        sum(map(len, texts)),
        "query",
    )
    labelled = label_rows(
        loaded.encoder,
        [
            Context(question.ask(request.query, text, request.instruction), f"documents[{i}]")
            for i, text in enumerate(texts)
        ],
        [question.yes, question.no],
        labels_param=None,
        add_special_tokens=True,
        truncation="error",
        max_tokens=settings.max_queued_tokens,
    )

    def write(found: list[list[float]]) -> dict[str, Any]:
        ranked = sorted(
            ((index, yes) for index, (yes, _) in enumerate(found)),
            # Of equal scores the first document comes first: sorted() is stable.
            key=lambda pair: -pair[1],
        )
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "results": [
                {
                    "index": index,
                    **({"document": {"text": texts[index]}} if request.return_documents else {}),
                    "relevance_score": yes,
                }
                for index, yes in ranked[: request.top_n or None]
            ],
        }

    return LabelAnswer(loaded.card, labelled, softmax=True, write=write), request.cache_salt
