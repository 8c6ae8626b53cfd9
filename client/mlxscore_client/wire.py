"""The JSON that crosses HTTP, once, for both sides. Knows no httpx, no MLX.

Requests are strict: an unknown field is an error with a hint, a token id is an integer and
nothing that merely converts to one. Answers are lenient on reading (a newer server may add fields).
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

Boundary = Literal["joint", "separate"]
Truncation = Literal["error", "left"]
HealthState = Literal["loading", "ok", "draining", "failed"]

MAX_TOKEN_ID = 2**31 - 1
"""The largest id that any model can have; the server's own bound is its embedding's row count."""

TokenId = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_ID)]


def _encodable(value: str) -> str:
    # Python strings can hold halves of a surrogate pair; UTF-8, and so JSON, cannot.
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "lone_surrogate",
            "holds a lone surrogate ({half}) at character {place}, which no text can hold",
            {"half": ascii(value[error.start]), "place": error.start},
        ) from error
    return value


Text = Annotated[str, AfterValidator(_encodable)]
"""A string that can be written as UTF-8."""


def _text_or_ids(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "ids"
    return None


# Branches of a union are tagged so that an error's path names the field and not the branch.
UNION_TAGS = frozenset({"text", "ids"})

TextOrIds = Annotated[
    Annotated[Text, Tag("text")]
    # Not strict, so that a tuple is a list too; the ids in it stay strict.
    | Annotated[list[TokenId], Field(strict=False, fail_fast=True), Tag("ids")],
    Discriminator(
        _text_or_ids,
        custom_error_type="text_or_ids",
        custom_error_message="must be a text (string) or a list of token ids (integers)",
    ),
]
"""A text, or token ids that are used verbatim."""


class Request(BaseModel):
    """Base of what a client sends: no unknown fields, and a misspelt name gets a hint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast(dict[Any, Any], data)
        known = list(cls.model_fields)
        for name in fields:
            if name not in cls.model_fields:
                near = get_close_matches(str(name)[:60], known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise PydanticCustomError(
                    "unknown_field",
                    "unknown field {name}; {hint}",
                    {"name": repr(name), "hint": hint},
                )
        return fields


class ScoreItem(Request):
    """One context and what may follow it."""

    context: TextOrIds = Field(
        description="What comes before. May be empty: the model's BOS (else EOS) id stands in for it.",
        examples=["The capital of France is"],
    )
    continuation: TextOrIds | None = Field(
        default=None,
        description="The one continuation to score; exactly one of this and `continuations`.",
    )
    continuations: Annotated[list[TextOrIds], Field(min_length=1, fail_fast=True)] | None = Field(
        default=None,
        description="Several continuations of the same context, scored together.",
        examples=[[" Paris", " London"]],
    )
    id: Text | None = Field(
        default=None, description="Yours; echoed in the result.", examples=["q1"]
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "ScoreItem":
        if (self.continuation is None) == (self.continuations is None):
            given = "neither" if self.continuation is None else "both"
            raise PydanticCustomError(
                "one_of",
                "give exactly one of 'continuation' and 'continuations' (got {given})",
                {"given": given},
            )
        return self

    def all_continuations(self) -> list[str | list[int]]:
        """The continuations as a list, whichever of the two fields they came in."""
        if self.continuations is not None:
            return list(self.continuations)
        return [] if self.continuation is None else [self.continuation]


class ScoreRequest(Request):
    """Body of `POST /score`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {
                            "context": "The capital of France is",
                            "continuations": [" Paris", " London"],
                            "id": "q1",
                        },
                        {"context": [504, 3575], "continuation": [282, 4649]},
                    ],
                    "top_logprobs": 1,
                }
            ]
        }
    )

    items: Annotated[list[ScoreItem], Field(min_length=1, fail_fast=True)] = Field(
        description="What to score, in order."
    )
    return_tokens: bool = Field(
        default=False, description="Per token: id, text, bytes, logprob, rank."
    )
    top_logprobs: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Per token, the k most likely tokens, highest first (implies `return_tokens`). "
        "At most the server's `--max-logprobs`.",
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="Special tokens (BOS) before a text context. null and true: as the tokenizer does "
        "by default; false: none. Never two BOS. Ids are used as given.",
    )
    boundary: Boundary = Field(
        default="joint",
        description='"joint" (lm-evaluation-harness\'s rule): context and continuation are encoded together. '
        '"separate": the two are encoded apart.',
    )
    truncation: Truncation = Field(
        default="error",
        description='What to do with a row longer than the model\'s limit: "error" answers 400, "left" cuts '
        "the context's start and reports how many tokens were cut.",
    )
    model: Text | None = Field(
        default=None, description="The served model's name; null for whichever is loaded."
    )


class Answer(BaseModel):
    """Base of what a server sends: fields that this version does not know are kept, not refused."""

    model_config = ConfigDict(extra="allow")


class TopLogprob(Answer):
    """One of the most likely tokens at a position."""

    id: int
    text: str
    bytes: list[int]
    logprob: float = Field(description="Nats.")


class TokenScore(Answer):
    """One token of a continuation."""

    id: int
    text: str = Field(
        description="The token's bytes as UTF-8; U+FFFD where it is part of a character."
    )
    bytes: list[int] = Field(description="The token's exact bytes; joined they give the text.")
    logprob: float = Field(description="Nats.")
    rank: int = Field(description="1 + the number of tokens that are strictly more likely.")
    top: list[TopLogprob] | None = Field(
        default=None, description="The `top_logprobs` most likely tokens, highest first."
    )


class Score(Answer):
    """One continuation's score."""

    index: int = Field(description="Place among the item's continuations.")
    loglikelihood: float = Field(description="Nats; the sum of the continuation's token logprobs.")
    is_greedy: bool = Field(
        description="Whether each token is the model's first choice (argmax; the lowest id on ties)."
    )
    num_tokens: int = Field(description="Tokens scored.")
    num_bytes: int = Field(description="UTF-8 bytes of the continuation as sent (ids: decoded).")
    num_chars: int = Field(description="Characters of the continuation as sent (ids: decoded).")
    merged_boundary: bool = Field(
        description="True where one token spans context and continuation: the score then covers all that "
        "follows the two encodings' longest common prefix."
    )
    tokens: list[TokenScore] | None = Field(default=None, description="Only with `return_tokens`.")


class ScoreResult(Answer):
    """One item's scores."""

    index: int = Field(description="Place among the request's items.")
    id: str | None = None
    context_tokens: int = Field(
        description="Tokens of the context (of its first continuation's row), before any truncation."
    )
    truncated_tokens: int = Field(
        description="Context tokens cut from the left, at most over its rows."
    )
    scores: list[Score]


class Usage(Answer):
    """Tokens counted."""

    prompt_tokens: int = Field(
        description="Tokens of all rows (context + continuation), after truncation."
    )
    total_tokens: int
    computed_tokens: int = Field(
        description="Tokens really sent through the model for this request."
    )
    cached_tokens: int = Field(description="Tokens answered from a cache.")


class ScoreResponse(Answer):
    """Answer of `POST /score`."""

    id: str
    object: Literal["score"] = "score"
    created: int = Field(description="Unix time, seconds.")
    model: str
    system_fingerprint: str = Field(
        description="Weights, dtype, head precision, MLX version: equal fingerprints on one machine give "
        "equal numbers up to rounding."
    )
    results: list[ScoreResult]
    usage: Usage


class SelfCheck(Answer):
    """What the check at load found: batched rows against single rows through the model's own call."""

    padding: Literal["left-padded", "equal-length"] = Field(
        description='"equal-length": padding changes this model\'s scores (recurrent state), so only rows '
        "of equal length share a micro-batch."
    )
    max_error: float = Field(
        description="Largest difference of a logprob in the layout in use, nats."
    )
    mean_error: float = Field(description="Mean difference, nats.")
    reason: str | None = Field(default=None, description="Why padding was refused, if it was.")


class ModelCard(Answer):
    """The resident model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mlxscore"
    root: str = Field(description="What was loaded: a folder's name or a hub id.")
    max_model_len: int | None = Field(
        description="Longest row in tokens; null: the model states none."
    )
    dtype: str = Field(description="Of the weights as they are computed with.")
    head_dtype: str = Field(description="Of the output head and of the logits.")
    quantization: dict[str, Any] | None
    vocab_size: int = Field(description="Rows of the embedding: token ids must be below this.")
    adds_bos: bool = Field(description="Whether the tokenizer puts BOS before a text by default.")
    bos_token_id: int | None
    eos_token_id: int | None
    max_logprobs: int
    system_fingerprint: str
    self_check: SelfCheck


class ModelList(Answer):
    """Answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(Answer):
    """Answer of `GET /health`."""

    status: HealthState


class ErrorBody(Answer):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(
        default=None, description="The field, such as `items[3].continuations[1]`."
    )
    code: str | None = None


class ErrorResponse(Answer):
    """Every error, of every endpoint."""

    error: ErrorBody
