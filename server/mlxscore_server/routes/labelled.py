"""Label probabilities as JSON: what /v1/score, /generative_scoring and /rerank answer alike."""

from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from mlxscore_client import wire
from mlxscore_server.engine import Scored
from mlxscore_server.labels import LabelRows
from mlxscore_server.routes.models import check_name
from mlxscore_server.row import Row

# SGLang's clients send this where they mean whichever model is loaded.
_ANY_MODEL = "default"

Write = Callable[[list[list[float]]], dict[str, Any]]
"""From the probabilities of each context's labels to what one endpoint says of them."""


class LabelAnswer:
    """One answer; `write` is the part that is the endpoint's own."""

    def __init__(
        self, card: wire.ModelCard, labelled: LabelRows, *, softmax: bool, write: Write
    ) -> None:
        self._card = card
        self._labelled = labelled
        self._softmax = softmax
        self._write = write

    @property
    def rows(self) -> list[Row]:
        return self._labelled.rows

    @property
    def numbers(self) -> int:
        """About how many numbers the answer holds: what building it costs."""
        return len(self._labelled.rows)

    def to_json(self, scored: Scored) -> bytes:
        found = self._labelled.probabilities(scored.scores, softmax=self._softmax)
        usage = {
            "prompt_tokens": self._labelled.prompt_tokens,
            "total_tokens": self._labelled.prompt_tokens,
            "completion_tokens": 0,
            "computed_tokens": scored.computed_tokens,
            "cached_tokens": scored.cached_tokens,
        }
        return to_json({**self._write(found), "model": self._card.id, "usage": usage})

    def param(self, row: int) -> str:
        """The path of the context that a row belongs to."""
        return self._labelled.param(row)


def check_model(asked: str | None, card: wire.ModelCard) -> None:
    """Raise ModelNotFound for any other model than the resident one."""
    check_name(None if asked == _ANY_MODEL else asked, card, "model")
