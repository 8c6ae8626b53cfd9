"""`POST /v1/score` as SGLang has it and `POST /generative_scoring` as vLLM has it: label probabilities.

Both ask how likely each of a few labels is to come next after a query and an item. They differ in their
defaults, in how the two texts become ids, and in the answer.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from mlxscore_client.wire.common import (
    Answer,
    CacheSalt,
    ForeignRequest,
    Ids,
    Text,
    TextOrIds,
    Usage,
)
from mlxscore_client.wire.score import Truncation

Tokenization = Literal["joint", "separate"]


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list | tuple):
        return None
    # The first element says what the others have to be: an error then names the one that is not.
    first: object = value[0] if value else ""  # pyright: ignore[reportUnknownVariableType]
    return "<id_lists>" if isinstance(first, list | tuple) else "<texts>"


LabelItems = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[list[Text], Field(strict=False, fail_fast=True), Tag("<texts>")]
    | Annotated[list[Ids], Field(strict=False, fail_fast=True), Tag("<id_lists>")],
    Discriminator(
        _shape,
        custom_error_type="items",
        custom_error_message="must be a text, a list of texts or a list of lists of token ids (integers)",
    ),
]
"""One text, or several items that are all of one kind."""


class LabelRequest(ForeignRequest):
    """What the two endpoints take alike."""

    query: TextOrIds = Field(description="Stands before every item, or after it (`item_first`).")
    items: LabelItems = Field(
        description="Each with the query is one context, of the query's kind: texts or lists of ids. "
        "One text is one item."
    )
    label_token_ids: Annotated[Ids, Field(min_length=1)] | None = Field(
        default=None,
        description="The labels as token ids, one token each; exactly one of this and `labels`.",
    )
    labels: (
        Annotated[
            list[Annotated[Text, Field(min_length=1)]],
            Field(strict=False, fail_fast=True, min_length=1),
        ]
        | None
    ) = Field(
        default=None,
        description="The labels as texts of any number of tokens, scored as continuations.",
    )
    item_first: bool = Field(default=False, description="Item before query.")
    apply_softmax: bool = Field(
        default=False, description="Probabilities among the labels only: they add up to 1."
    )
    tokenization: Tokenization = Field(
        default="joint",
        description='"joint" (as SGLang): query and item are one text; "separate" (as vLLM): the two, and '
        "text labels, are encoded apart.",
    )
    add_special_tokens: bool = Field(
        default=True,
        description="Special tokens (BOS) where a text context begins, never two. Ids are used as given.",
    )
    truncation: Truncation = Field(
        default="error",
        description='What to do with a row longer than the model\'s limit: "error" answers 400, "left" cuts '
        "the context's start.",
    )
    model: Text | None = Field(
        default=None,
        description='The served model\'s name; null or "default" for whichever is loaded.',
    )
    cache_salt: CacheSalt = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "LabelRequest":
        if (self.labels is None) == (self.label_token_ids is None):
            raise PydanticCustomError(
                "one_of",
                "give exactly one of 'labels' and 'label_token_ids' (got {count})",
                {"count": "neither" if self.labels is None else "both"},
            )
        return self


class LabelScoreRequest(LabelRequest):
    """Body of `POST /v1/score`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "The opposite of ",
                    "items": ["hot is", "big is"],
                    "labels": [" cold", " small"],
                }
            ]
        }
    )


class GenerativeScoringRequest(LabelRequest):
    """Body of `POST /generative_scoring`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "The opposite of",
                    "items": [" hot is", " big is"],
                    "labels": [" cold", " small"],
                }
            ]
        }
    )

    apply_softmax: bool = Field(
        default=True, description="Probabilities among the labels only: they add up to 1."
    )
    tokenization: Tokenization = Field(
        default="separate",
        description='"separate" (as vLLM): query, item and text labels are encoded apart; "joint" (as '
        "SGLang): query and item are one text.",
    )


class LabelUsage(Usage):
    """Tokens counted."""

    prompt_tokens: int = Field(
        description="Tokens of query + item, each item once, after truncation; labels are not counted."
    )
    completion_tokens: Literal[0] = Field(default=0, description="Nothing is generated.")


class LabelScoreResponse(Answer):
    """Answer of `POST /v1/score`."""

    scores: list[list[float]] = Field(
        description="For each item the probability of each label, in the order of the labels."
    )
    model: str
    usage: LabelUsage
    object: Literal["scoring"] = "scoring"


class GenerativeScore(Answer):
    """One item's score."""

    index: int = Field(description="Place among the request's items.")
    object: Literal["score"] = "score"
    score: float = Field(description="Probability of the first label.")


class GenerativeScoringResponse(Answer):
    """Answer of `POST /generative_scoring`."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(description="Unix time, seconds.")
    model: str
    data: list[GenerativeScore]
    usage: LabelUsage
