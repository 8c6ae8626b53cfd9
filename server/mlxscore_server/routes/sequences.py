"""`POST /get_sequence_logprobs/`: a teacher's logprobs of given completions, as TRL's client asks."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.errors import (
    BodyTooLarge,
    InvalidRequest,
    NotReady,
    QueueFull,
    ScoringFailed,
    WrongContentType,
)
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.completed import CompletedSequence, SequencesAnswer
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.run import run
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings
from mlxscore_server.tokens import Encoder

router = APIRouter()

_EXAMPLE: dict[str, Any] = {
    "logprobs": [[[-0.25808122754096985, -2.7407538890838623]]],
    "logprob_token_ids": [[[7042, 260]]],
}


# TRL's client puts a slash at the end; who writes the path by hand may not.
@router.post("/get_sequence_logprobs", include_in_schema=False)
@router.post(
    "/get_sequence_logprobs/",
    response_model=wire.SequenceLogprobsResponse,
    summary="Score completions for TRL",
    responses=documented(
        _EXAMPLE,
        InvalidRequest,
        BodyTooLarge,
        WrongContentType,
        QueueFull,
        ScoringFailed,
        NotReady,
    ),
    openapi_extra=body(wire.SequenceLogprobsRequest),
)
async def get_sequence_logprobs(request: Request) -> Response:
    """The most likely tokens at each position of given completions, and the actual ones, as JSON or as
    arrays in base64. All of a request succeeds, or none of it."""
    return await run(request, _prepare)


def _prepare(raw: bytearray, loaded: Loaded, settings: Settings) -> SequencesAnswer:
    request = parse(wire.SequenceLogprobsRequest, raw)
    _check(request, max_logprobs=settings.max_logprobs, vocab_size=loaded.card.vocab_size)
    sequences = [
        _sequence(loaded.encoder, i, ids, prompt_length, request.top_logprobs)
        for i, (ids, prompt_length) in enumerate(
            zip(request.sequences, request.prompt_lengths, strict=True)
        )
    ]
    return SequencesAnswer(
        sequences, request.top_logprobs, binary=request.response_format == "binary"
    )


def _check(request: wire.SequenceLogprobsRequest, *, max_logprobs: int, vocab_size: int) -> None:
    count, lengths, k = len(request.sequences), len(request.prompt_lengths), request.top_logprobs
    if lengths != count:
        raise InvalidRequest(
            f"prompt_lengths has {lengths} entries and sequences {count}; one each is needed",
            param="prompt_lengths",
        )
    if k > max_logprobs:
        stated = "" if "top_logprobs" in request.model_fields_set else " (TRL's default)"
        raise InvalidRequest(
            f"top_logprobs is {k}{stated}, the limit (--max-logprobs) is {max_logprobs}; ask for fewer or "
            f"start the server with --max-logprobs {k}",
            param="top_logprobs",
        )
    if k > vocab_size:
        raise InvalidRequest(
            f"top_logprobs is {k}, the model has {vocab_size} tokens", param="top_logprobs"
        )
    if request.temperature != 1.0:
        raise InvalidRequest(
            f"temperature is {request.temperature:g}; only 1 is supported: this service gives the model's "
            "own logprobs, and another temperature's need all of the logits",
            param="temperature",
            code="unsupported",
        )


def _sequence(
    encoder: Encoder, i: int, given: list[int], prompt_length: int, k: int
) -> CompletedSequence:
    param = f"sequences[{i}]"
    ids = encoder.verbatim(given, param)
    limit = encoder.max_model_len
    if limit is not None and len(ids) > limit:
        raise InvalidRequest(
            f"{param} has {len(ids)} tokens, the model's limit is {limit}",
            param=param,
            code="context_length_exceeded",
        )
    if prompt_length > len(ids):
        raise InvalidRequest(
            f"prompt_lengths[{i}] is {prompt_length}, {param} has {len(ids)} tokens",
            param=f"prompt_lengths[{i}]",
        )
    scored = prompt_length < len(ids)
    return CompletedSequence(
        param, len(ids) - prompt_length, Row(ids, prompt_length, top_logprobs=k) if scored else None
    )
