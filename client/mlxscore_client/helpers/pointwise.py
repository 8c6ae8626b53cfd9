"""Pointwise mutual information of a context and what follows it."""

from pydantic import Field

from mlxscore_client.calls import Limits
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.result import Conversation, Result, Steps
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.wire import ScoreResponse


class PMI(Result):
    """How much likelier a continuation is after its context than after the domain alone."""

    pmi: float = Field(description="`loglikelihood` - `domain_loglikelihood`, nats.")
    loglikelihood: float = Field(description="After the context, nats.")
    domain_loglikelihood: float = Field(
        description="After the domain premise alone, nats; after the BOS (else EOS) where it is empty."
    )


def pmi(
    context: TextOrIds | Conversation,
    continuation: TextOrIds,
    *,
    domain: TextOrIds,
    model: str | None,
    limits: Limits,
) -> Steps[PMI]:
    """See `Client.pmi`."""
    end = asked.text_or_ids(continuation, "continuation")
    items = [
        asked.context(context) | {"continuation": end},
        {"context": asked.text_or_ids(domain, "domain"), "continuation": end},
    ]

    def name(at: int, field: str, _: int | None) -> str:
        return "continuation" if field == "continuation" else ("context", "domain")[at]

    response: ScoreResponse = yield asked.score(items, {"model": model}, limits, name)
    given, alone = (result.scores[0].loglikelihood for result in response.results)
    return PMI(pmi=given - alone, loglikelihood=given, domain_loglikelihood=alone)
