"""Which entries live in which slab, and where when they move. Knows no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxscore_server.prefix_path import Entry, Span
from mlxscore_server.row import Int64s


@dataclass(slots=True)
class Use:
    """What lives in a slab."""

    entries: dict[Entry, None] = field(default_factory=dict[Entry, None])
    """Those with rows or hidden states there (a dict for its order)."""
    rows: int = 0
    hidden: int = 0


class SlabUses(dict[int, Use]):
    """By slab: what lives there. Slabs in which nothing lives are left out."""

    def house(self, entry: Entry) -> None:
        """Count an entry in the slabs where it lives."""
        use = self.setdefault(entry.slab, Use())
        use.entries[entry] = None
        use.rows += entry.num_tokens
        for kept in entry.hidden:
            use = self.setdefault(kept.slab, Use())
            use.entries[entry] = None
            use.hidden += len(kept.rows)

    def unhouse(self, entry: Entry) -> None:
        """Count it no more; a slab where nothing lives any longer is left out."""
        self[entry.slab].rows -= entry.num_tokens
        for kept in entry.hidden:
            self[kept.slab].hidden -= len(kept.rows)
        for slab in {entry.slab, *(kept.slab for kept in entry.hidden)}:
            entries = self[slab].entries
            del entries[entry]
            if not entries:
                del self[slab]

    def move(self, slabs: Sequence[int], to: int) -> tuple[list[Span], Int64s]:
        """Say that what lives in `slabs` now lies in the new slab `to`, one after another.

        Which rows must be put there, in their order, and (n, 2) slabs and rows of hidden states.
        """
        leaving = {slab: i for i, slab in enumerate(slabs)}
        moved = list(dict.fromkeys(entry for slab in slabs for entry in self[slab].entries))
        for entry in moved:
            self.unhouse(entry)
        spans: list[Span] = []
        row = num_hidden = 0
        hidden: list[Int64s] = [np.zeros((0, 2), np.int64)]
        with_rows = [entry for entry in moved if entry.slab in leaving]
        for entry in sorted(with_rows, key=lambda entry: (leaving[entry.slab], entry.row)):
            spans.append((entry.slab, entry.row, entry.num_tokens))
            entry.slab, entry.row = to, row
            row += entry.num_tokens
        for entry in moved:
            for kept in entry.hidden:
                if kept.slab in leaving:
                    n = len(kept.rows)
                    hidden.append(np.stack([np.full(n, kept.slab), kept.rows], axis=1))
                    kept.slab, kept.rows = to, np.arange(num_hidden, num_hidden + n)
                    num_hidden += n
            self.house(entry)
        return spans, np.concatenate(hidden)
