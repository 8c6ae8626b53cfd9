"""A window over a made-up scorer: rows with equal inputs are computed once, shortest first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlxscore_server.errors import MlxscoreError
from mlxscore_server.plan import cut_padded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.stats import Stats
from mlxscore_server.tree import grow

Answers = list[RowScore | MlxscoreError]


@dataclass(frozen=True)
class Batch:
    """What runs together."""

    indices: list[int]
    rows: list[Row]
    computed_tokens: int


class FakeWindow:
    def __init__(
        self,
        rows: Sequence[Row],
        max_batch_tokens: int,
        score: Callable[[Batch], Answers],
        stats: Stats | None = None,
    ) -> None:
        self._stats = Stats() if stats is None else stats
        tree = grow(rows, node_cost=1, longest=2**31, share=False)
        self._score = score
        self._flat = [row.num_inputs for row in rows]
        self.batches: list[Batch] = []
        self.computed = [0] * len(rows)
        self.cached = [0] * len(rows)
        lengths = np.diff(tree.offsets)
        for cut in cut_padded(tree, max_batch_tokens=max_batch_tokens, batch_overhead=0):
            indices = [i for i, leaf in enumerate(tree.leaves) if cut.first <= leaf < cut.last]
            tokens = int(lengths[cut.first : cut.last].sum())
            self.batches.append(Batch(indices, [rows[i] for i in indices], tokens))
        for leaf in set(tree.leaves.tolist()):
            self.computed[tree.leaves.tolist().index(leaf)] = int(lengths[leaf])

    @property
    def num_steps(self) -> int:
        return len(self.batches)

    def tokens_of(self, step: int) -> int:
        return self.batches[step].computed_tokens

    def rows_of(self, step: int) -> list[int]:
        return self.batches[step].indices

    def start(self, step: int) -> list[tuple[int, RowScore | MlxscoreError]]:
        batch, stats = self.batches[step], self._stats
        if not step:
            stats.flat_tokens += sum(self._flat)
            stats.window_rows.note(len(self._flat))
            stats.window_tokens.note(sum(self._flat))
        stats.computed_tokens += batch.computed_tokens
        stats.padded_tokens += batch.computed_tokens
        stats.micro_batch_tokens.note(batch.computed_tokens)
        return list(zip(batch.indices, self._score(batch), strict=True))

    def finish(
        self, started: list[tuple[int, RowScore | MlxscoreError]]
    ) -> list[tuple[int, RowScore | MlxscoreError]]:
        return started

    def close(self) -> None:
        pass
