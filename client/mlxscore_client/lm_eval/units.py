"""Encoded requests as what is sent together, cut to the model's length as lm_eval's `hf` cuts them.

A row is one context with one continuation, as token ids. Pure: no lm_eval, no sockets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Encoded = tuple[tuple[str, str], list[int], list[int]]
"""(context, continuation) as texts, then both as ids: what lm_eval hands to `_loglikelihood_tokens`."""

Window = tuple[list[int], list[int]]
"""Context and continuation of a part of a document."""


@dataclass(frozen=True)
class Unit:
    """Rows that are never sent apart: a question's choices, or a document's windows."""

    place: int
    """Of its first row (a question) among the requests, or of the document."""
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """As `Client.score_items` takes them. Neighbours with the same context share an item."""

    def add(self, context: list[int], continuation: list[int]) -> None:
        if not self.items or self.items[-1]["context"] != context:
            self.items.append({"context": context, "continuations": []})
        self.items[-1]["continuations"].append(continuation)

    @property
    def rows(self) -> int:
        return sum(len(item["continuations"]) for item in self.items)

    @property
    def longest(self) -> int:
        """Tokens of its longest row."""
        return max(
            len(item["context"]) + max(map(len, item["continuations"])) for item in self.items
        )


def questions(requests: Sequence[Encoded], max_length: int) -> tuple[list[Unit], int]:
    """Neighbours with the same text as context as one unit; and how many rows were cut from the left.

    A model with `max_length` reads the last `max_length + 1` ids of a row but one: the last id is only
    ever a target. Raises ValueError where a continuation is empty or longer than `max_length`.
    """
    units: list[Unit] = []
    cut = 0
    previous = ""
    for place, ((text, continuation_text), context, continuation) in enumerate(requests):
        if not 0 < len(continuation) <= max_length:
            what = f"{len(continuation)} tokens" if continuation else "no tokens of its own"
            raise ValueError(
                f"the continuation {continuation_text[:60]!r} has {what} after {text[-60:]!r}; "
                f"from 1 to {max_length} (max_length) can be scored"
            )
        excess = max(0, len(context) + len(continuation) - (max_length + 1))
        cut += excess > 0
        # All sentences without a context have the same one, which is no reason to keep them together.
        if not (units and text and text == previous):
            units.append(Unit(place))
        units[-1].add(context[excess:], continuation)
        previous = text
    return units, cut


def document(place: int, windows: Iterable[Window]) -> Unit:
    """A document's windows, each after its own context."""
    unit = Unit(place)
    for context, continuation in windows:
        unit.add(context, continuation)
    return unit


def packed(units: Iterable[Unit], rows: int) -> Iterator[list[Unit]]:
    """Units for one request each time, longest first; at most `rows` rows, except of a single unit.

    Rows of like lengths go together, and what remains never takes longer than the bar promises.
    """
    pack: list[Unit] = []
    held = 0
    for unit in sorted(units, key=lambda unit: -unit.longest):
        if pack and held + unit.rows > rows:
            yield pack
            pack, held = [], 0
        pack.append(unit)
        held += unit.rows
    if pack:
        yield pack
