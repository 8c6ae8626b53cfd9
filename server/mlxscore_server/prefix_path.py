"""A kept prefix: entries, each a run of tokens with its rows in a slab, cut at a depth. Knows no MLX."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct

import numpy as np

from mlxscore_server.row import Ids, Int64s

TOKEN_BYTES = 4
_TOKEN = Struct("=i")
Span = tuple[int, int, int]
"""Slab, first row, number of rows."""


@dataclass(eq=False, slots=True)
class Hidden:
    """Hidden states that a slab keeps for an entry."""

    slab: int
    positions: Int64s
    """Ascending positions in the text."""
    rows: Int64s
    """The row of each in the slab's hidden states."""

    def between(self, start: int, stop: int) -> "list[Hidden]":
        """What stands in positions [start, stop), as a list of one, or of none."""
        i, j = self.positions.searchsorted((start, stop)).tolist()
        if i == j:
            return []
        return [Hidden(self.slab, self.positions[i:j].copy(), self.rows[i:j].copy())]


@dataclass(eq=False, slots=True)
class Entry:
    """Kept tokens in positions [start, end) of every text that begins as its ancestors do."""

    parent: "Entry | None"
    """Ends where this begins; None for the root of a salt, which has no tokens."""
    start: int
    data: bytes
    """Its tokens, int32: bytes compare faster than arrays."""
    slab: int
    row: int
    """Row of the first token within the slab; the others follow."""
    hidden: list[Hidden]
    """No position occurs twice."""
    salt: bytes = b""
    """Of a root."""
    children: "dict[int, Entry]" = field(default_factory=dict[int, "Entry"])
    """By first token."""
    pins: int = 0
    """Pins on itself and on all that hangs below it."""
    dropped: bool = False

    @property
    def tokens(self) -> Ids:
        return np.frombuffer(self.data, np.int32)

    @property
    def num_tokens(self) -> int:
        return len(self.data) // TOKEN_BYTES

    @property
    def end(self) -> int:
        return self.start + len(self.data) // TOKEN_BYTES

    def at(self, i: int) -> int:
        """Its i-th token."""
        return _TOKEN.unpack_from(self.data, i * TOKEN_BYTES)[0]

    @property
    def root(self) -> "Entry":
        entry = self
        while entry.parent is not None:
            entry = entry.parent
        return entry

    def chain(self) -> "Iterator[Entry]":
        """It and its ancestors, without the root."""
        if self.dropped:
            raise ValueError("this path's entry was dropped: pin what is used later")
        entry = self
        while entry.parent is not None:
            yield entry
            entry = entry.parent


@dataclass(frozen=True, slots=True)
class Path:
    """The kept prefix of `depth` tokens: an entry and its ancestors, cut at a depth.

    Good until the entry is dropped, so pin it to use it later: a path to what was dropped raises.
    """

    entry: Entry
    depth: int

    def cut(self, depth: int) -> "Path":
        """A shorter prefix of the same text."""
        if not 0 <= depth <= self.depth:
            raise ValueError(f"cannot cut a path of {self.depth} tokens at {depth}")
        return Path(self.entry, depth)

    def entries(self) -> "Iterator[Entry]":
        """Those that hold its tokens, from the last to the first, without the root."""
        # Where an entry was cut after this path was made, its lower part may lie beyond it.
        return (entry for entry in self.entry.chain() if entry.start < self.depth)

    def spans(self) -> list[Span]:
        """Where its rows lie, from position 0 upwards. Good until entries are moved."""
        spans: list[Span] = []
        for entry in self.entries():
            count = min(self.depth, entry.end) - entry.start
            if spans and spans[-1][:2] == (entry.slab, entry.row + count):
                spans[-1] = (entry.slab, entry.row, count + spans[-1][2])
            else:
                spans.append((entry.slab, entry.row, count))
        return spans[::-1]

    def hidden(self, position: int) -> tuple[int, int] | None:
        """Slab and row of a position's hidden state, 0 <= position < depth; None if it is not kept."""
        for entry in self.entries():
            if entry.start <= position < min(self.depth, entry.end):
                for kept in entry.hidden:
                    i = bisect_left(kept.positions, position)
                    if i < len(kept.positions) and kept.positions[i] == position:
                        return kept.slab, int(kept.rows[i])
        return None

    def hidden_from(self, start: int) -> Int64s:
        """(depth - start, 2): slab and row for each position from `start` on; -1 where none is kept."""
        found = np.full((self.depth - start, 2), -1, np.int64)
        for entry in self.entries():
            for kept in entry.hidden:
                i, j = np.searchsorted(kept.positions, (start, self.depth))
                found[kept.positions[i:j] - start, 0] = kept.slab
                found[kept.positions[i:j] - start, 1] = kept.rows[i:j]
        return found
