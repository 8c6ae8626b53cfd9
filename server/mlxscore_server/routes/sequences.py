"""`POST /get_sequence_logprobs/`: a teacher's logprobs of given completions, as TRL's client asks."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mlxscore_client import wire
from mlxscore_server.body import parse
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.refusals import check_length, check_top, short
from mlxscore_server.resident import Loaded
from mlxscore_server.routes.completed import CompletedSequence, SequencesAnswer
from mlxscore_server.routes.documented import body, documented
from mlxscore_server.routes.run import SCORING_ERRORS, Salted, run
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
        *SCORING_ERRORS,
    ),
    openapi_extra=body(wire.SequenceLogprobsRequest),
)
async def get_sequence_logprobs(request: Request) -> Response:
    """The most likely tokens at each position of given completions, and the actual ones, as JSON or as
    arrays in base64. All of a request succeeds, or none of it."""
    return await run(request, _prepare)


def _prepare(raw: bytearray, loaded: Loaded, settings: Settings) -> Salted:
    request = parse(wire.SequenceLogprobsRequest, raw, max_rows=settings.max_rows_per_request)
    _check(request, max_logprobs=settings.max_logprobs, vocab_size=loaded.card.vocab_size)
    sequences = [
        _sequence(loaded.encoder, i, ids, prompt_length, request.top_logprobs)
        for i, (ids, prompt_length) in enumerate(
            zip(request.sequences, request.prompt_lengths, strict=True)
        )
    ]
    binary = request.response_format == "binary"
    return SequencesAnswer(sequences, request.top_logprobs, binary=binary), request.cache_salt


def _check(request: wire.SequenceLogprobsRequest, *, max_logprobs: int, vocab_size: int) -> None:
    count, lengths, k = len(request.sequences), len(request.prompt_lengths), request.top_logprobs
    if lengths != count:
        raise InvalidRequest(
            f"prompt_lengths has {lengths} entries and sequences {count}; one each is needed",
            param="prompt_lengths",
        )
    check_top(
        k,
        "top_logprobs",
        max_logprobs=max_logprobs,
        vocab_size=vocab_size,
        shown=None if "top_logprobs" in request.model_fields_set else f"{k} (TRL's default)",
        hint=f"; ask for fewer or start the server with --max-logprobs {short(k)}",
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
    check_length(len(ids), encoder.max_model_len, param)
    if prompt_length > len(ids):
        raise InvalidRequest(
            f"prompt_lengths[{i}] is {short(prompt_length)}, {param} has {len(ids)} tokens",
            param=f"prompt_lengths[{i}]",
        )
    scored = prompt_length < len(ids)
    return CompletedSequence(
        param, len(ids) - prompt_length, Row(ids, prompt_length, top_logprobs=k) if scored else None
    )
