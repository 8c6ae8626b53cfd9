"""The answers of a window's rows as they come in, scored token by scored token. Knows no MLX."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlxscore_server.errors import MlxscoreError, NonFiniteLogits
from mlxscore_server.reading import Read
from mlxscore_server.row import Row, RowScore


class Answers:
    """Collects what was read for each pair (scored token), pairs in the order of the rows."""

    def __init__(self, rows: Sequence[Row], ends: NDArray[np.int64], vocab_size: int) -> None:
        """`ends` (number of rows,) is where each row's pairs end."""
        num_pairs = int(ends[-1]) if len(ends) else 0
        tops = np.array([row.top_logprobs for row in rows], np.int64)
        self.rows = rows
        self.ends = ends
        self.counts = np.diff(ends, prepend=0)
        self.tops = np.repeat(tops, self.counts)
        """(P,) how many most likely tokens each pair asks for."""
        self.ranks = np.repeat(np.array([row.ranks for row in rows], np.bool_), self.counts)
        """(P,) whether its rank is asked for."""
        among = [row.among for row in rows if row.among is not None]
        if any(one is not among[0] for one in among):
            raise ValueError("rows of one window must ask for the same ids")
        self.among = among[0] if among else None
        self.with_among = np.repeat(
            np.array([row.among is not None for row in rows], np.bool_), self.counts
        )
        """(P,) whether it asks for these ids' probability."""
        self.targets = np.empty(num_pairs, np.int32)
        for row, end in zip(rows, ends.tolist(), strict=True):
            self.targets[end - row.num_targets : end] = row.targets
        top = min(int(tops.max(initial=0)), vocab_size)
        self._tokens = self.targets.copy()
        self._logprobs = np.empty(num_pairs, np.float32)
        self._greedy = np.empty(num_pairs, np.bool_)
        self._ranks = np.empty(num_pairs if self.ranks.any() else 0, np.int32)
        self._among = np.empty(num_pairs if among else 0, np.float32)
        self._top_ids = np.zeros((num_pairs if top else 0, top), np.int32)
        self._top_logprobs = np.zeros((num_pairs if top else 0, top), np.float32)

    def record(self, pairs: NDArray[np.int64], top_of: NDArray[np.int64], read: Read) -> None:
        """Store what was read for `pairs`; those of them that ask for the most likely tokens find
        theirs in the lines `top_of` of `read.top_*`."""
        self._tokens[pairs] = read.targets
        self._logprobs[pairs] = read.logprobs
        self._greedy[pairs] = read.greedy
        if read.ranks is not None:
            self._ranks[pairs] = read.ranks
        if read.among_logprobs is not None:
            self._among[pairs] = read.among_logprobs
        width = read.top_ids.shape[1]
        if width:
            with_top = pairs[self.tops[pairs] > 0]
            self._top_ids[with_top, :width] = read.top_ids[top_of]
            self._top_logprobs[with_top, :width] = read.top_logprobs[top_of]

    def of(self, index: int) -> RowScore | MlxscoreError:
        """A row's answer, as arrays of its own (views would keep the whole window)."""
        row, end = self.rows[index], int(self.ends[index])
        part = slice(end - row.num_targets, end)
        top = min(row.top_logprobs, self._top_ids.shape[1])
        if not np.isfinite(self._logprobs[part]).all():
            return NonFiniteLogits("the model gave NaN or infinity on this row")
        return RowScore(
            logprobs=self._logprobs[part].copy(),
            greedy=self._greedy[part].copy(),
            ranks=self._ranks[part].copy() if row.ranks else None,
            top_ids=self._top_ids[part, :top].copy() if row.top_logprobs else None,
            top_logprobs=self._top_logprobs[part, :top].copy() if row.top_logprobs else None,
            among_logprobs=self._among[part].copy() if row.among is not None else None,
            next_id=int(self._tokens[end - 1]) if row.next_token else None,
        )
