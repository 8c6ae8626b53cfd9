"""The answers of the model by formula (tests/steady_model.py), worked out from the texts alone."""

import math
from collections.abc import Sequence

from steady_model import BOS, logprobs

from mlxscore_server.question import question_for


def pair(context: str, continuation: str) -> float:
    before = context.encode()
    return sum(logprobs([*before, *continuation.encode()], len(before)))


def echo(text: str) -> tuple[float, ...]:
    return tuple(logprobs(text.encode(), 1))


def rolling(text: str, window: int) -> float:
    """In disjoint windows, each of which but the first has as much context as it has room for."""
    ids, done, found = text.encode(), 0, 0.0
    while done < len(ids):
        end = min(len(ids), done + window)
        row = [BOS, *ids[:end]] if end <= window else list(ids[end - 1 - window : end])
        found += sum(logprobs(row, len(row) - (end - done)))
        done = end
    return found


def labels(query: str, items: Sequence[str], label_ids: Sequence[int]) -> tuple[float, ...]:
    contexts = [(query + item).encode() for item in items]
    return tuple(
        math.exp(logprobs([*context, label], len(context))[0])
        for context in contexts
        for label in label_ids
    )


def rerank(query: str, documents: Sequence[str]) -> tuple[float, ...]:
    question = question_for("", None)
    found: list[float] = []
    for document in documents:
        asked = question.ask(query, document, None)
        yes, no = (pair(asked, answer) for answer in (question.yes, question.no))
        found.append(1 / (1 + math.exp(no - yes)))
    return tuple(found)
