"""Label scoring: contexts and labels to rows, the rows' scores to probabilities. Knows no HTTP, no MLX.

Each label is a continuation of its context, by the rules of pairs.py. So the N one-token labels of a
context are N rows with the same inputs, which the model reads once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mlxscore_client.wire import ScoreItem, Truncation
from mlxscore_server.contexts import Context
from mlxscore_server.errors import InvalidRequest, NonFiniteLogits
from mlxscore_server.names import Name
from mlxscore_server.pairs import EncodedItem, encode_items
from mlxscore_server.refusals import Made
from mlxscore_server.row import Row, RowScore
from mlxscore_server.tokens import Encoder


@dataclass(frozen=True)
class LabelRows:
    """For each context a row a label, in order."""

    rows: list[Row]
    params: list[str]
    """The path of each context."""
    num_labels: int
    prompt_tokens: int
    """Of all contexts, each once."""

    def param(self, row: int) -> str:
        return self.params[row // self.num_labels]

    def probabilities(self, scores: Sequence[RowScore], *, softmax: bool) -> list[list[float]]:
        """For each context the probability of each label; with `softmax`, among the labels only.

        Raises NonFiniteLogits where a score is no number.
        """
        sums = np.array([score.loglikelihood for score in scores], np.float64)
        bad = np.flatnonzero(~np.isfinite(sums))
        if bad.size:
            param = self.param(int(bad[0]))
            raise NonFiniteLogits(
                f"the model gave a number that is not finite for {param}", param=param
            )
        sums = sums.reshape(-1, self.num_labels)
        if softmax:
            weights = np.exp(sums - sums.max(axis=1, keepdims=True))
            return (weights / weights.sum(axis=1, keepdims=True)).tolist()
        # Rounding may leave a logprob a little above 0.
        return np.minimum(np.exp(sums), 1.0).tolist()


def label_rows(
    encoder: Encoder,
    contexts: Sequence[Context],
    labels: Sequence[str] | Sequence[int],
    *,
    labels_param: str | None,
    add_special_tokens: bool,
    truncation: Truncation,
    hint: str = "",
    max_tokens: int | None = None,
) -> LabelRows:
    """A row for each context and label. Raises InvalidRequest, which names the field and the limit.

    `labels` that are ids are within bounds. `labels_param` is the field that they came in, None where the
    sender has no say in them; `hint` says what a sender of too long a context can do. `max_tokens`
    (--max-queued-tokens) bounds what contexts and labels make together; None: no bound.
    """
    made, length = Made(max_tokens), sum(len(x) if isinstance(x, str) else 1 for x in labels)
    for context in contexts:
        made.add(len(labels), len(context.given), length, context.param)
    continuations = [label if isinstance(label, str) else [label] for label in labels]
    items = [
        # Checked already; to check a million ids again takes a second.
        ScoreItem.model_construct(
            context=_not_empty(encoder, context, labels), continuations=continuations
        )
        for context in contexts
    ]
    encoded = encode_items(
        encoder,
        items,
        add_special_tokens=add_special_tokens,
        boundary="joint",
        truncation="left",
        names=[_Names(context.param, labels_param) for context in contexts],
    )
    rows: list[Row] = []
    prompt_tokens = 0
    for context, item in zip(contexts, encoded, strict=True):
        assert isinstance(item, EncodedItem), "this is a bug: every item has continuations"
        if item.truncated_tokens and truncation == "error":
            limit = encoder.max_model_len or 0
            raise InvalidRequest(
                f"{context.param} and what belongs to it make a row of {limit + item.truncated_tokens} "
                f"tokens, the limit is {limit}{hint}",
                param=context.param,
                code="context_length_exceeded",
            )
        rows += [Row(pair.ids, pair.start) for pair in item.pairs]
        prompt_tokens += item.pairs[0].start
    return LabelRows(rows, [c.param for c in contexts], len(labels), prompt_tokens)


def _not_empty(
    encoder: Encoder, context: Context, labels: Sequence[str] | Sequence[int]
) -> str | list[int]:
    if context.given:
        return context.given
    if encoder.prefix_id is None:
        raise InvalidRequest(
            f"{context.param} and the query are empty and this model has neither a BOS nor an EOS token "
            "to stand in for them; give a context",
            param=context.param,
        )
    # Before a text, pairs.py has its own rule; a label that is an id may be that very id.
    return context.given if isinstance(labels[0], str) else [encoder.prefix_id]


class _Names(NamedTuple):
    """Every label comes after each context, so that a message tells which."""

    context: str
    labels: str | None

    def continuation(self, j: int) -> Name:
        if self.labels is None:
            return Name(self.context, f"the answer after {self.context}")
        return Name(f"{self.labels}[{j}]", f"{self.labels}[{j}] after {self.context}")
