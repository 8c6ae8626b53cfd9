"""`POST /score`: loglikelihoods of continuations given contexts."""

import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from mlxscore_client import wire
from mlxscore_server.body import read_json
from mlxscore_server.disconnect import while_connected
from mlxscore_server.engine import Engine, Scored
from mlxscore_server.envelope import invalid_request
from mlxscore_server.errors import InvalidRequest, ModelNotFound, NonFiniteLogits, ScoringFailed
from mlxscore_server.pieces import Pieces
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.settings import Settings
from mlxscore_server.tokens import EncodedItem

router = APIRouter()

_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/ScoreRequest"}},
        },
    }
}


@router.post(
    "/score",
    response_model=wire.ScoreResponse,
    openapi_extra=_SCHEMA,
    summary="Score continuations of contexts",
)
async def score(request: Request) -> Response:
    """The loglikelihood of each continuation given its context, and on demand each token's logprob,
    rank and the most likely alternatives."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    loaded = engine.loaded  # 503 while loading, before any of the body is read
    body = await read_json(request, settings.max_request_bytes)
    answer = await while_connected(request, _answer(engine, loaded, settings, body))
    return Response(answer, media_type="application/json")


async def _answer(engine: Engine, loaded: Loaded, settings: Settings, body: bytes) -> bytes:
    asked, items, rows = await engine.encode(_prepare, loaded, settings, body)
    try:
        scored = await engine.score(rows)
    except ScoringFailed as error:
        raise _named(error, asked, items) from error
    return await engine.encode(_render, loaded, asked, items, rows, scored)


def _prepare(
    loaded: Loaded, settings: Settings, body: bytes
) -> tuple[wire.ScoreRequest, list[EncodedItem], list[Row]]:
    """The body parsed, checked and encoded; runs off the event loop."""
    try:
        asked = wire.ScoreRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None
    if asked.top_logprobs > settings.max_logprobs:
        raise InvalidRequest(
            f"top_logprobs is {asked.top_logprobs}; the limit (--max-logprobs) is {settings.max_logprobs}",
            param="top_logprobs",
        )
    if asked.model is not None and asked.model != loaded.card.id:
        raise ModelNotFound(
            f"model {asked.model!r} is not served here; {loaded.card.id!r} is", param="model"
        )
    items = loaded.encoder.encode_items(
        asked.items,
        add_special_tokens=asked.add_special_tokens,
        boundary=asked.boundary,
        truncation=asked.truncation,
    )
    ranks = asked.return_tokens or asked.top_logprobs > 0
    rows = [
        Row(pair.ids, pair.start, top_logprobs=asked.top_logprobs, ranks=ranks)
        for item in items
        for pair in item.pairs
    ]
    return asked, items, rows


def _render(
    loaded: Loaded,
    asked: wire.ScoreRequest,
    items: Sequence[EncodedItem],
    rows: Sequence[Row],
    scored: Scored,
) -> bytes:
    """The answer as JSON; runs off the event loop."""
    scores = iter(zip(rows, scored.scores, strict=True))
    results: list[wire.ScoreResult] = []
    for i, (item, encoded) in enumerate(zip(asked.items, items, strict=True)):
        results.append(
            wire.ScoreResult(
                index=i,
                id=item.id,
                context_tokens=encoded.context_tokens,
                truncated_tokens=encoded.truncated_tokens,
                scores=[
                    wire.Score(
                        index=j,
                        loglikelihood=found.loglikelihood,
                        is_greedy=found.is_greedy,
                        num_tokens=row.num_targets,
                        num_bytes=pair.num_bytes,
                        num_chars=pair.num_chars,
                        merged_boundary=pair.merged_boundary,
                        tokens=_tokens(row, found, loaded.encoder.pieces),
                    )
                    for j, (pair, (row, found)) in enumerate(
                        zip(encoded.pairs, scores, strict=False)
                    )
                ],
            )
        )
    num_tokens = sum(len(row.ids) for row in rows)
    response = wire.ScoreResponse(
        id=f"score-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=loaded.card.id,
        system_fingerprint=loaded.card.system_fingerprint,
        results=results,
        usage=wire.Usage(
            prompt_tokens=num_tokens,
            total_tokens=num_tokens,
            computed_tokens=scored.computed_tokens,
            cached_tokens=scored.cached_tokens,
        ),
    )
    return response.model_dump_json(exclude_none=True).encode()


def _tokens(row: Row, found: RowScore, pieces: Pieces) -> list[wire.TokenScore] | None:
    if found.ranks is None:
        return None
    tops: list[list[wire.TopLogprob]] | None = None
    if found.top_ids is not None and found.top_logprobs is not None:
        tops = [
            [_top(pieces, i, value) for i, value in zip(ids, values, strict=True)]
            for ids, values in zip(found.top_ids.tolist(), found.top_logprobs.tolist(), strict=True)
        ]
    return [
        wire.TokenScore(
            id=i,
            text=pieces.text(i),
            bytes=list(pieces.piece(i)),
            logprob=logprob,
            rank=rank,
            top=tops[n] if tops is not None else None,
        )
        for n, (i, logprob, rank) in enumerate(
            zip(row.targets.tolist(), found.logprobs.tolist(), found.ranks.tolist(), strict=True)
        )
    ]


def _top(pieces: Pieces, token_id: int, logprob: float) -> wire.TopLogprob:
    if not math.isfinite(logprob):
        # JSON has no infinity, and a token that cannot occur has no place among the most likely.
        raise NonFiniteLogits(
            f"fewer tokens than top_logprobs have a finite logprob (id {token_id} has none)",
            param="top_logprobs",
        )
    return wire.TopLogprob(
        id=token_id,
        text=pieces.text(token_id),
        bytes=list(pieces.piece(token_id)),
        logprob=logprob,
    )


def _named(
    error: ScoringFailed, asked: wire.ScoreRequest, items: Sequence[EncodedItem]
) -> ScoringFailed:
    """The error with the path of the item that is to blame, where one is."""
    if error.row is None:
        return error
    row = error.row
    for i, encoded in enumerate(items):
        if row < len(encoded.pairs):
            one = asked.items[i].continuations is None
            param = f"items[{i}].continuation" + ("" if one else f"s[{row}]")
            return type(error)(f"{error.message}: {param}", param=param)
        row -= len(encoded.pairs)
    return error
