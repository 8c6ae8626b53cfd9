"""From the loglikelihoods of a few choices to a score of each, and to probabilities among them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.wire import Score

Normalize = Literal["none", "token", "byte", "char"]
"""What a loglikelihood is divided by: nothing (lm-evaluation-harness's `acc`), its tokens, its bytes
(`acc_bytes`), its characters (`acc_norm`)."""


def normalized(score: Score, continuation: Any, normalize: Normalize) -> float:
    """A continuation's loglikelihood in nats, by its length.

    lm-evaluation-harness counts a choice without the space that stands before it, and so does this;
    of ids, all that they decode to.
    """
    counts = {"none": 1, "token": score.num_tokens}
    if isinstance(continuation, str):
        # White space alone is all that there is to count.
        text = continuation.lstrip() or continuation
        counts |= {"byte": len(text.encode()), "char": len(text)}
    else:
        # Ids that stand for no text (a special token of some tokenizers) have nothing to divide by.
        counts |= {"byte": max(1, score.num_bytes), "char": max(1, score.num_chars)}
    return score.loglikelihood / counts[normalize]


def one_of(value: str, choices: Any, name: str) -> None:
    """Raise InvalidRequestError where a value is none of a Literal's; `name` is the argument's."""
    known = get_args(choices)
    if value not in known:
        allowed = ", ".join(map(repr, known))
        raise InvalidRequestError(f"{name}: must be one of {allowed}, not {value!r}", param=name)


def log_sum_exp(values: Iterable[float]) -> float:
    """log(sum(exp(values))), of one value at least."""
    given = list(values)
    highest = max(given)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in given))


def softmax(values: Sequence[float]) -> list[float]:
    """exp(values), divided by their sum."""
    total = log_sum_exp(values)
    return [math.exp(value - total) for value in values]
