"""`POST /get_sequence_logprobs/`: what TRL's own vLLM server offers for distillation."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mlxscore_client.wire.common import Answer, CacheSalt, ForeignRequest, Ids

_Sequence = Annotated[Ids, Field(min_length=1)]


class SequenceLogprobsRequest(ForeignRequest):
    """Body of `POST /get_sequence_logprobs/`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sequences": [[504, 3575, 282, 4649, 314, 7042], [504, 3575, 282]],
                    "prompt_lengths": [5, 1],
                    "top_logprobs": 2,
                }
            ]
        }
    )

    sequences: Annotated[list[_Sequence], Field(strict=False, fail_fast=True, min_length=1)] = (
        Field(description="Token ids of prompt and completion together, used verbatim.")
    )
    prompt_lengths: Annotated[
        list[Annotated[int, Field(ge=1)]], Field(strict=False, fail_fast=True)
    ] = Field(
        description="Tokens of each sequence's prompt; what follows them is scored. At least 1: nothing "
        "comes before a sequence's first token."
    )
    top_logprobs: Annotated[int, Field(ge=0)] = Field(
        default=100,
        description="The k most likely tokens at each position. The default is TRL's; at most the server's "
        "`--max-logprobs`.",
    )
    temperature: float = Field(
        default=1.0,
        description="1: what another temperature would give cannot be told from logprobs.",
    )
    response_format: Literal["json", "binary"] = Field(
        default="json", description='"binary": little-endian arrays in base64.'
    )
    cache_salt: CacheSalt = None


class SequenceLogprobsResponse(Answer):
    """Answer of `POST /get_sequence_logprobs/`; B sequences, L tokens in the longest completion."""

    logprobs: list[list[list[float]]] | None = Field(
        default=None,
        description="json: nats for each sequence and token of its completion, by rank: the k most likely "
        "tokens, and the actual one where it is not among them.",
    )
    logprob_token_ids: list[list[list[int]]] | None = Field(
        default=None, description="json: whose they are."
    )
    logprobs_b64: str | None = Field(
        default=None,
        description="binary: float32, (B, L, k), the most likely tokens, highest first; -inf beyond a "
        "completion's end.",
    )
    token_ids_b64: str | None = Field(
        default=None, description="binary: int32, (B, L, k), whose they are; 0 beyond the end."
    )
    actual_logprobs_b64: str | None = Field(
        default=None, description="binary: float32, (B, L, 1), the actual tokens'; -inf beyond."
    )
    actual_token_ids_b64: str | None = Field(
        default=None, description="binary: int32, (B, L, 1), the actual tokens; 0 beyond."
    )
    shape: list[int] | None = Field(default=None, description="binary: [B, L, k].")
    completion_lengths: list[int] | None = Field(
        default=None, description="binary: tokens of each completion."
    )
