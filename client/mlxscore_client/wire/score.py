"""`POST /score`: our own endpoint."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mlxscore_client.wire.chat import ContinueFinalMessage, JsonObject, Messages
from mlxscore_client.wire.common import Answer, CacheSalt, Ids, Request, Text, TextOrIds, Usage
from mlxscore_client.wire.frames import frame
from mlxscore_client.wire.heat_map import Cell, heat_map

if TYPE_CHECKING:
    from pandas import DataFrame

Boundary = Literal["joint", "separate"]
Truncation = Literal["error", "left"]
PrefixIn = Literal["first", "every"]

_SUBJECTS = ("context", "messages", "text", "ids")
_OBJECTS = ("continuation", "continuations")
_QUOTED = "'context', 'messages', 'text' and 'ids'"


def _one_of(message: str) -> PydanticCustomError:
    # A template of pydantic's own: what stands in braces would be looked up.
    return PydanticCustomError("one_of", "{message}", {"message": message})


class ScoreItem(Request):
    """One context and what may follow it, or a whole text.

    Exactly one of `context`, `messages`, `text` and `ids`. The first two need exactly one of
    `continuation` and `continuations`, the last two take neither.
    """

    context: TextOrIds | None = Field(
        default=None,
        description="What comes before. May be empty: the model's BOS (else EOS) id stands in for it.",
        examples=["The capital of France is"],
    )
    messages: Messages | None = Field(
        default=None,
        description="A conversation as the context, through the model's chat template.",
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
    text: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None,
        description="A whole text of any length, scored in windows from its first token on. "
        "`add_special_tokens`, `boundary` and `truncation` do not apply to it.",
    )
    ids: Annotated[Ids, Field(min_length=1)] | None = Field(
        default=None, description="As `text`, as token ids."
    )
    id: Text | None = Field(
        default=None, description="Yours; echoed in the result.", examples=["q1"]
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "ScoreItem":
        subjects = [name for name in _SUBJECTS if getattr(self, name) is not None]
        if len(subjects) > 1:
            raise _one_of(f"give exactly one of {_QUOTED} (got {' and '.join(subjects)})")
        given = [name for name in _OBJECTS if getattr(self, name) is not None]
        if not subjects and not given:
            raise _one_of(f"give exactly one of {_QUOTED} (got none)")
        if not subjects:
            raise PydanticCustomError(
                "no_context",
                "is required: it must be a text (string) or a list of token ids (integers)",
            )
        if self.whole is not None:
            if given:
                raise _one_of(
                    f"{given[0]!r} needs 'context' or 'messages' before it; {subjects[0]!r} is scored whole"
                )
        elif len(given) != 1:
            raise _one_of(
                "give exactly one of 'continuation' and 'continuations' "
                f"(got {'both' if given else 'neither'})"
            )
        return self

    @property
    def whole(self) -> str | list[int] | None:
        """What is scored from its first token on: the text or the ids."""
        return self.ids if self.text is None else self.text

    def all_continuations(self) -> list[str | list[int]]:
        """The continuations as a list, whichever of the two fields they came in."""
        if self.continuations is not None:
            return list(self.continuations)
        return [] if self.continuation is None else [self.continuation]


class ScoreOptions(Request):
    """How items are scored, the same for all of a request."""

    return_tokens: bool = Field(
        default=False, description="Per token: id, text, bytes, logprob, rank."
    )
    top_logprobs: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Per token, the k most likely tokens, highest first (implies `return_tokens`). "
        "At most the server's `--max-logprobs`.",
    )
    space_logprobs: bool = Field(
        default=False,
        description="Per token, how likely it was that a token that begins with a space comes there "
        "(implies `return_tokens`): what word probabilities are corrected by.",
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="Special tokens (BOS) before a text context. null and true: as the tokenizer does "
        "by default; false: none. Never two BOS. Ids are used as given. After `messages`, whose template "
        "writes its own, only true puts any there.",
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
    add_generation_prompt: bool = Field(
        default=True,
        description="After `messages`: what makes the model answer, as its chat template has it.",
    )
    continue_final_message: ContinueFinalMessage = Field(
        default=False,
        description="Leave the last of `messages` open, so that continuations go on with it; needs "
        "`add_generation_prompt: false`.",
    )
    chat_template_kwargs: JsonObject | None = Field(
        default=None, description="More variables for the chat template."
    )
    window: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="Of a whole text: tokens that the model reads at once; null: its limit.",
    )
    stride: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Of a whole text: new tokens that a window scores, the rest of it being context; "
        "null: as many as the window has (lm-evaluation-harness's disjoint windows).",
    )
    prefix_in: PrefixIn = Field(
        default="first",
        description='Of a whole text: whether only the "first" or "every" window begins with the prefix '
        "token (BOS, else EOS).",
    )
    model: Text | None = Field(
        default=None, description="The served model's name; null for whichever is loaded."
    )
    cache_salt: CacheSalt = None


class ScoreRequest(ScoreOptions):
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
    space_logprob: float | None = Field(
        default=None,
        description="Of all tokens together that begin with a space, in place of this one, nats; only with "
        "`space_logprobs`, and null where the tokenizer has none.",
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
    num_words: int | None = Field(
        default=None,
        description="Of a whole text: the pieces between its runs of white space; an empty one before or "
        "after the text counts (as lm-evaluation-harness has it).",
    )
    num_windows: int | None = Field(default=None, description="Of a whole text.")
    bits_per_byte: float | None = Field(
        default=None,
        description="Of a whole text: -loglikelihood / num_bytes / ln 2; null where it has no bytes.",
    )
    token_perplexity: float | None = Field(
        default=None,
        description="Of a whole text: exp(-loglikelihood / num_tokens); null where a float64 cannot hold it.",
    )
    word_perplexity: float | None = Field(
        default=None,
        description="Of a whole text: exp(-loglikelihood / num_words); null where a float64 cannot hold it.",
    )
    byte_perplexity: float | None = Field(
        default=None,
        description="Of a whole text: exp(-loglikelihood / num_bytes); null where a float64 cannot hold it "
        "or there are no bytes.",
    )

    def _repr_html_(self) -> str | None:
        """In notebooks: the tokens coloured by surprisal; None, so the plain form, where there are none."""
        return _heat_map(self)


def _heat_map(score: Score) -> str | None:
    if score.tokens is None:
        return None
    cells = [Cell(token.text, -token.logprob / math.log(2), token.rank) for token in score.tokens]
    return heat_map(cells, title=f"loglikelihood {score.loglikelihood:.4f} nats")


class ScoreResult(Answer):
    """One item's scores."""

    index: int = Field(description="Place among the request's items.")
    id: str | None = None
    context_tokens: int = Field(
        description="Tokens of the context (of its first continuation's row), before any truncation. Of a "
        "whole text: 1 where the prefix token was put before it, 0 where its own first token is the context."
    )
    truncated_tokens: int = Field(
        description="Context tokens cut from the left, at most over its rows."
    )
    scores: list[Score]

    def to_frame(self, by: Literal["continuation", "token"] = "continuation") -> "DataFrame":
        """A pandas frame with a row a continuation, or a row a token (`return_tokens`).

        Raises ImportError without pandas, ValueError where there are no tokens.
        """
        if by == "continuation":
            return frame([score.model_dump(exclude={"tokens"}) for score in self.scores])
        if by != "token":
            raise ValueError(f"by: must be 'continuation' or 'token', not {by!r}")
        rows: list[dict[str, Any]] = []
        for score in self.scores:
            if score.tokens is None:
                raise ValueError("by: there are no tokens; ask for them with return_tokens=True")
            rows += [
                {"continuation": score.index, "token": i, **token.model_dump()}
                for i, token in enumerate(score.tokens)
            ]
        return frame(rows)

    def _repr_html_(self) -> str | None:
        """In notebooks: its scores as heat maps; None where they have no tokens."""
        maps = [_heat_map(score) for score in self.scores]
        return "".join(one for one in maps if one is not None) or None


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
