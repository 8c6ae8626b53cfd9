"""A window of rows on its way through the model, micro-batch by micro-batch. Knows no queue."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxscore_server.answers import Answers
from mlxscore_server.arrays import to_mlx
from mlxscore_server.errors import MlxscoreError
from mlxscore_server.forward import Forward
from mlxscore_server.gauges import note_memory
from mlxscore_server.kept import Kept
from mlxscore_server.logits import Reading
from mlxscore_server.packed import LayerRows
from mlxscore_server.plan import MicroBatch
from mlxscore_server.prefix_path import Path
from mlxscore_server.reading import Wanted
from mlxscore_server.remainder import Remainder
from mlxscore_server.row import Int64s, Row, RowScore
from mlxscore_server.stats import Stats


@dataclass(frozen=True)
class Started:
    """A step whose work is under way."""

    step: int
    parts: list[tuple[Int64s, Int64s, Reading]]
    """Pairs, which lines of the most likely tokens are theirs, and what is being read."""


class Window:
    """Rows whose micro-batches are started one after the other and finished in the same order.

    To start the next before the last is finished keeps the device busy.
    """

    def __init__(
        self,
        forward: Forward,
        kept: Kept,
        rows: Sequence[Row],
        left: Remainder,
        batches: Sequence[MicroBatch],
        *,
        pad: bool,
        stats: Stats,
    ) -> None:
        self.cached = left.cached
        """(R,) tokens of each row that were kept from earlier windows."""
        self._forward, self._kept, self._left = forward, kept, left
        self._rows, self._pad, self._stats = rows, pad, stats
        self._answers = Answers(rows, left.tree.ends, forward.head.vocab_size)
        # What kept hidden states predict comes first; then a step for each micro-batch.
        self._steps: list[MicroBatch | None] = [*([None] if left.known else []), *batches]
        self._order = np.argsort(left.tree.at, kind="stable")
        self._sorted_at = left.tree.at[self._order]
        self._last_step = self._last_steps()
        self._below = _ends_below(left.tree.parents)
        self._paths: dict[int, Path] = {}
        self._pinned: list[tuple[int, Path]] = []
        self._failed = False
        for node, path in enumerate(left.paths):
            if path is not None:
                self._pin(path, until=node + 1)
        for known in left.known:
            self._pin(known.path, until=0)

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    @property
    def computed(self) -> list[int]:
        """(R,) the tokens computed, shared out: the first row through a node pays for it."""
        paid = np.zeros(len(self._rows), np.int64)
        np.add.at(paid, np.array(self._left.owners, np.int64), self._left.tree.lengths)
        return paid.tolist()

    def tokens_of(self, step: int) -> int:
        """Tokens that a step computes."""
        batch, offsets = self._steps[step], self._left.tree.offsets
        return 0 if batch is None else int(offsets[batch.last] - offsets[batch.first])

    def rows_of(self, step: int) -> list[int]:
        """The rows that cannot be answered without this step."""
        batch, leaves = self._steps[step], self._left.tree.leaves
        if batch is None:
            pairs = np.flatnonzero(self._left.tree.at < 0)
            return np.unique(np.searchsorted(self._left.tree.ends, pairs, side="right")).tolist()
        # A row goes through a node of the micro-batch if its leaf lies at or below one of them.
        below = np.zeros(len(self._below) + 1, np.bool_)
        for node in range(batch.first, batch.last):
            below[node : self._below[node]] = True
        return np.flatnonzero(below[leaves] & (leaves >= 0)).tolist()

    def start(self, step: int) -> Started:
        """Begin with a step; steps are started in order. Whatever the model raises comes through."""
        batch = self._steps[step]
        self._count(step)
        if batch is None:
            hidden, line, pairs = self._look_up()
        else:
            low, high = self._left.tree.offsets[[batch.first, batch.last]]
            i, j = np.searchsorted(self._sorted_at, (low, high))
            pairs = self._order[i:j]
            hidden, line = self._run(batch, self._sorted_at[i:j] - low)
        parts = self._begin_to_read(hidden, line, pairs)
        self._kept.shrink()
        return Started(step, parts)

    def finish(self, started: Started) -> list[tuple[int, RowScore | MlxscoreError]]:
        """Wait for a step; the rows that are complete with it, and their answers."""
        for pairs, top_of, reading in started.parts:
            self._answers.record(pairs, top_of, reading())
        done = np.flatnonzero(self._last_step == started.step).tolist()
        answers = [(row, self._answers.of(row)) for row in done]
        self._failed |= any(isinstance(answer, MlxscoreError) for _, answer in answers)
        return answers

    def close(self) -> None:
        """Let go of what was held for steps that will not come."""
        for _, path in self._pinned:
            self._kept.unpin(path)
        self._pinned.clear()
        if self._failed:
            # NaN spreads in a micro-batch (0 times NaN is NaN), so nothing of a window is kept that had a
            # row without a finite score; nor what it went on from, which may be where that came from.
            for path in self._all_paths():
                self._kept.forget(path)
        self._kept.shrink()
        note_memory(self._stats, self._kept)

    def _all_paths(self) -> Iterator[Path]:
        yield from self._paths.values()
        yield from (path for path in self._left.paths if path is not None)
        yield from (known.path for known in self._left.known)

    def _count(self, step: int) -> None:
        stats, batch, tokens = self._stats, self._steps[step], self.tokens_of(step)
        if not step:
            stats.windows += 1
            flat = sum(row.num_inputs for row in self._rows)
            stats.flat_tokens += flat
            stats.cached_tokens += sum(self.cached)
            stats.cached_rows += sum(map(bool, self.cached))
            stats.window_rows.note(len(self._rows))
            stats.window_tokens.note(flat)
        if batch is not None:
            stats.micro_batches += 1
            stats.computed_tokens += tokens
            stats.micro_batch_tokens.note(tokens)
            whole = None if batch.length is None else batch.length * (batch.last - batch.first)
            stats.padded_tokens += whole or tokens

    def _last_steps(self) -> Int64s:
        """(R,) the step with which each row is complete."""
        tree = self._left.tree
        ends = [0 if b is None else int(tree.offsets[b.last]) for b in self._steps]
        step_of_pair = np.searchsorted(np.array(ends), tree.at, side="right")
        firsts = np.concatenate([[0], tree.ends[:-1]]).astype(np.int64)
        return np.maximum.reduceat(step_of_pair, firsts) if len(firsts) else firsts

    def _look_up(self) -> tuple[mx.array, Int64s, Int64s]:
        """Kept hidden states, the pairs that they predict, and which of them is each pair's, ascending:
        hidden states, lines, pairs."""
        pairs = np.concatenate([known.pairs for known in self._left.known])
        places = np.concatenate([known.places() for known in self._left.known])
        places, line = np.unique(places, axis=0, return_inverse=True)
        by_line = np.argsort(line, kind="stable")
        hidden = self._kept.hidden(places)
        self._unpin(0)
        return hidden, line[by_line], pairs[by_line]

    def _run(self, batch: MicroBatch, positions: Int64s) -> tuple[mx.array, Int64s]:
        """Hidden states of a micro-batch and which of them is at each position (ascending)."""
        tree = self._left.tree
        first, last = batch.first, batch.last
        offsets = tree.offsets[first : last + 1] - tree.offsets[first]
        tokens = tree.tokens[tree.offsets[first] : tree.offsets[last]]
        if batch.length is not None:
            wanted, line = np.unique(positions, return_inverse=True)
            segments = np.split(tokens, offsets[1:-1])
            return self._forward.padded(segments, batch.length, wanted, pad=self._pad), line
        keep = self._to_keep(first, last)
        # The next token of any continuation is predicted at a kept segment's last position.
        wanted = np.union1d(positions, offsets[1:][keep - first] - 1)
        line = np.searchsorted(wanted, positions)
        before = [
            None if tree.parents[node] >= first else self._path_above(node)
            for node in range(first, last)
        ]
        continued = [path for path in before if path is not None]
        kept = self._kept.rows(continued)
        found = iter(kept.indices)
        hidden, rows = self._forward.packed(
            tokens,
            np.diff(offsets),
            tree.starts[first:last],
            np.where(tree.parents[first:last] >= first, tree.parents[first:last] - first, -1),
            [None if path is None else next(found) for path in before],
            kept,
            wanted,
        )
        if len(keep):
            self._keep(keep, first, last, offsets, wanted, hidden, rows)
        self._unpin(last)
        return hidden, line

    def _to_keep(self, first: int, last: int) -> Int64s:
        """The nodes of a micro-batch whose keys and values are kept."""
        nodes = np.arange(first, last)
        return nodes if self._kept.max_bytes else nodes[self._below[first:last] > last]

    def _path_above(self, node: int) -> Path | None:
        """The kept path that a node continues, once its parent is kept; None where it begins a text."""
        parent = int(self._left.tree.parents[node])
        return self._paths[parent] if parent >= 0 else self._left.paths[node]

    def _keep(
        self,
        nodes: Int64s,
        first: int,
        last: int,
        offsets: Int64s,
        wanted: Int64s,
        hidden: mx.array,
        rows: list[LayerRows],
    ) -> None:
        tree = self._left.tree
        keys, values = [k for k, _ in rows], [v for _, v in rows]
        slab = self._kept.put(keys, values, hidden)
        listed: list[int] = nodes.tolist()
        for node in listed:
            low, high = int(offsets[node - first]), int(offsets[node - first + 1])
            start, above = int(tree.starts[node]), self._path_above(node)
            if above is None:
                above = self._kept.root(self._rows[self._left.owners[node]].salt)
            i, j = np.searchsorted(wanted, (low, high))
            path = self._kept.add(
                above,
                tree.tokens[tree.offsets[node] : tree.offsets[node + 1]],
                slab,
                low,
                wanted[i:j] - low + start,
                np.arange(int(i), int(j)),
            )
            self._paths[node] = path
            if self._below[node] > last:
                self._pin(path, until=int(self._below[node]))

    def _pin(self, path: Path, until: int) -> None:
        """Hold on to a path until the nodes before `until` have run."""
        self._kept.pin(path)
        self._pinned.append((until, path))

    def _unpin(self, last: int) -> None:
        for until, path in self._pinned:
            if until <= last:
                self._kept.unpin(path)
        self._pinned = [(until, path) for until, path in self._pinned if until > last]

    def _begin_to_read(
        self, hidden: mx.array, line: Int64s, pairs: Int64s
    ) -> list[tuple[Int64s, Int64s, Reading]]:
        """Begin to read `pairs`, whose hidden states are lines of `hidden`, ascending; in chunks."""
        if not len(pairs):
            return []
        rows, row_of_pair = np.unique(line, return_inverse=True)
        if len(rows) != hidden.shape[0]:
            hidden = mx.take(hidden, to_mlx(rows.astype(np.int32)), axis=0)
        if len(rows) > self._forward.chunk:
            # Else each chunk would hold the graph of the whole body.
            mx.async_eval(hidden)
        with self._forward.head.widened():
            return list(self._chunks(hidden, pairs, row_of_pair, len(rows)))

    def _chunks(
        self, hidden: mx.array, pairs: Int64s, row_of_pair: Int64s, num_rows: int
    ) -> Iterator[tuple[Int64s, Int64s, Reading]]:
        chunk, answers = self._forward.chunk, self._answers
        for low in range(0, num_rows, chunk):
            i, j = np.searchsorted(row_of_pair, (low, low + chunk))
            here, row_here = pairs[i:j], row_of_pair[i:j] - low
            tops = answers.tops[here]
            top_rows, top_of = np.unique(row_here[tops > 0], return_inverse=True)
            wanted = Wanted(
                row_here.astype(np.int32),
                answers.targets[here],
                bool(answers.ranks[here].any()),
                min(int(tops.max()), self._forward.head.vocab_size),
                top_rows.astype(np.int32),
                answers.among if answers.with_among[here].any() else None,
            )
            yield here, top_of, self._forward.read(hidden[low : low + chunk], wanted)


def _ends_below(parents: Int64s) -> Int64s:
    """(N,) where each node's subtree ends: nodes [i, end) are below node i, itself included."""
    ends = list(range(1, len(parents) + 1))
    listed = parents.tolist()
    for node in range(len(listed) - 1, -1, -1):
        parent = listed[node]
        if parent >= 0 and ends[node] > ends[parent]:
            ends[parent] = ends[node]
    return np.array(ends, np.int64)
