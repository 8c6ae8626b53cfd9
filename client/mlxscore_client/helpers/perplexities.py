"""Perplexities of whole texts, as lm-evaluation-harness defines them.

Each is a weighted mean over the texts: exp(-sum of loglikelihoods / sum of tokens, words or bytes)
(`weighted_perplexity` there), and bits per byte is -sum of loglikelihoods / sum of bytes / ln 2.
"""

import math
from collections.abc import Iterable
from typing import Any

from pydantic import Field

from mlxscore_client import inputs
from mlxscore_client.calls import Limits
from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.result import Result, Steps
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.wire import PrefixIn, Score, ScoreResponse


class Perplexity(Result):
    """Over all texts together."""

    loglikelihood: float = Field(description="Of all texts, nats.")
    num_tokens: int
    num_words: int = Field(
        description="Pieces between runs of white space, as lm-evaluation-harness counts them."
    )
    num_bytes: int
    token_perplexity: float | None = Field(
        description="exp(-loglikelihood / num_tokens); null where a float64 cannot hold it."
    )
    word_perplexity: float | None = Field(description="exp(-loglikelihood / num_words).")
    byte_perplexity: float | None = Field(description="exp(-loglikelihood / num_bytes).")
    bits_per_byte: float | None = Field(description="-loglikelihood / num_bytes / ln 2.")
    texts: list[Score] = Field(description="Of each text by itself, in order; same field names.")


def perplexity(
    texts: Iterable[TextOrIds],
    *,
    window: int | None,
    stride: int | None,
    prefix_in: PrefixIn,
    model: str | None,
    limits: Limits,
) -> Steps[Perplexity]:
    """See `Client.perplexity`."""
    items = inputs.whole_texts([texts] if isinstance(texts, str) else texts)
    if not items:
        raise InvalidRequestError("texts: needs one text at least", param="texts")
    options: dict[str, Any] = {
        "window": window,
        "stride": stride,
        "prefix_in": prefix_in,
        "model": model,
    }
    response: ScoreResponse = yield asked.score(
        items, options, limits, lambda at, _field, _which: f"texts[{at}]"
    )
    scores = [result.scores[0] for result in response.results]
    nats = -math.fsum(score.loglikelihood for score in scores)
    tokens = sum(score.num_tokens for score in scores)
    words = sum(score.num_words or 0 for score in scores)
    size = sum(score.num_bytes for score in scores)
    return Perplexity(
        loglikelihood=-nats,
        num_tokens=tokens,
        num_words=words,
        num_bytes=size,
        token_perplexity=_exp(nats, tokens),
        word_perplexity=_exp(nats, words),
        byte_perplexity=_exp(nats, size),
        bits_per_byte=nats / size / math.log(2) if size else None,
        texts=scores,
    )


def _exp(nats: float, count: int) -> float | None:
    try:
        return math.exp(nats / count)
    except (OverflowError, ZeroDivisionError):
        return None
