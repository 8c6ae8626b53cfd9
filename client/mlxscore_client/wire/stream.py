"""`POST /score/stream`: items as lines in, results as lines out."""

from pydantic import Field

from mlxscore_client.wire.common import Answer, ErrorBody
from mlxscore_client.wire.score import Score, ScoreOptions


class StreamOptions(ScoreOptions):
    """The query of `POST /score/stream`."""

    ordered: bool = Field(
        default=False,
        description="Answer in the order of the items; else each as soon as it is scored.",
    )


class StreamResult(Answer):
    """One line of the answer: an item's scores, or what is wrong with it."""

    index: int = Field(description="Place among the items; blank lines do not count.")
    id: str | None = None
    context_tokens: int | None = Field(
        default=None, description="As in the result of `/score`; null beside an error."
    )
    truncated_tokens: int | None = Field(
        default=None, description="As in the result of `/score`; null beside an error."
    )
    scores: list[Score] | None = Field(default=None, description="Null beside an error.")
    error: ErrorBody | None = Field(
        default=None, description="Null beside scores. Its `param` is a path in the item."
    )
