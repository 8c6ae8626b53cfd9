"""`POST /rerank`: documents in the order in which the model says yes to them."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from mlxscore_client.wire.common import Answer, CacheSalt, ForeignRequest, Text
from mlxscore_client.wire.labels import LabelUsage


def _as_document(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


class RerankText(ForeignRequest):
    """A document to judge; fields other than its text are ignored."""

    text: Text


Document = Annotated[
    RerankText,
    BeforeValidator(_as_document, json_schema_input_type=Text | RerankText),
]
"""A text, as it is or as the field `text` of an object."""


class RerankRequest(ForeignRequest):
    """Body of `POST /rerank`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "What is the capital of France?",
                    "documents": [
                        "The capital of Brazil is Brasilia.",
                        "The capital of France is Paris.",
                    ],
                    "top_n": 1,
                }
            ]
        }
    )

    query: Text = Field(description="What is looked for.")
    documents: Annotated[list[Document], Field(strict=False, fail_fast=True, min_length=1)] = Field(
        description="What is judged: texts, or objects with a field `text`."
    )
    top_n: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="How many results to return; null and 0: all."
    )
    return_documents: bool | None = Field(
        default=True, description="Whether results hold the documents' texts."
    )
    instruction: Text | None = Field(
        default=None,
        description="What makes a document relevant; null: that it answers a web search query. Only where "
        "the template has a place for it.",
    )
    model: Text | None = Field(
        default=None,
        description='The served model\'s name; null or "default" for whichever is loaded.',
    )
    cache_salt: CacheSalt = None
    # Of other servers: each would change the scores.
    truncate_prompt_tokens: int | None = Field(default=None, description="null: nothing is cut.")
    max_tokens_per_doc: int | None = Field(default=None, description="null: nothing is cut.")
    raw_scores: bool | None = Field(default=None, description="false: scores are probabilities.")


class RerankDocument(Answer):
    """A document as it was sent."""

    text: str


class RerankResult(Answer):
    """One document's score."""

    index: int = Field(description="Place among the request's documents.")
    document: RerankDocument | None = Field(
        default=None, description="Only with `return_documents`."
    )
    relevance_score: float = Field(
        description="P(yes) / (P(yes) + P(no)) of the model's answer to a yes/no question."
    )


class RerankResponse(Answer):
    """Answer of `POST /rerank`."""

    id: str
    model: str
    usage: LabelUsage
    results: list[RerankResult] = Field(description="Highest score first; ties by index.")
