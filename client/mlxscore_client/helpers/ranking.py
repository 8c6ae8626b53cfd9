"""Several continuations of one context, the likeliest first."""

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from mlxscore_client import inputs
from mlxscore_client.calls import Limits
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.choices import Normalize, normalized, one_of, softmax
from mlxscore_client.helpers.result import Conversation, Result, Steps
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.wire import ScoreResponse, Truncation


class Ranked(Result):
    """One continuation in its place."""

    index: int = Field(description="Place among the continuations as given.")
    continuation: str | list[int]
    probability: float = Field(description="Softmax of `score` over the choices: they add up to 1.")
    score: float = Field(description="What the order is by: `loglikelihood` over its length, nats.")
    loglikelihood: float = Field(description="Nats.")
    is_greedy: bool = Field(description="Whether each token is the model's first choice.")
    num_tokens: int


def rank(
    context: TextOrIds | Conversation,
    continuations: Iterable[TextOrIds],
    *,
    normalize: Normalize,
    truncation: Truncation,
    model: str | None,
    limits: Limits,
) -> Steps[list[Ranked]]:
    """See `Client.rank`."""
    one_of(normalize, Normalize, "normalize")
    given = [
        asked.text_or_ids(one, f"continuations[{j}]")
        for j, one in enumerate(inputs.continuations(continuations))
    ]
    item = asked.context(context) | {"continuations": given}

    def name(_: int, field: str, which: int | None) -> str:
        if field != "continuations":
            return "context"
        return field if which is None else f"{field}[{which}]"

    options: dict[str, Any] = {"truncation": truncation, "model": model}
    response: ScoreResponse = yield asked.score([item], options, limits, name)
    found = response.results[0].scores
    scores = [normalized(s, c, normalize) for s, c in zip(found, given, strict=True)]
    ranked = [
        Ranked(
            index=j,
            continuation=given[j],
            probability=probability,
            score=scores[j],
            loglikelihood=found[j].loglikelihood,
            is_greedy=found[j].is_greedy,
            num_tokens=found[j].num_tokens,
        )
        for j, probability in enumerate(softmax(scores))
    ]
    # A stable sort: of equals the first given comes first, as argmax has it.
    return sorted(ranked, key=lambda one: -one.score)
