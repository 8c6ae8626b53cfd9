"""A micro-batch's nodes as pieces: what is never torn apart when attention blocks are formed.

A piece is one node, or a family: short siblings that share a row, since they see the same path.
Pieces stand in execution order. Knows no MLX.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxscore_server.row import Int64s

Int32s = NDArray[np.int32]
Paths = Sequence[Int32s | None]


@dataclass(frozen=True)
class Nodes:
    """n nodes of one micro-batch, parents before children."""

    lengths: Int64s
    """(n,) tokens, at least one each."""
    starts: Int64s
    """(n,) position of the first token."""
    parents: Int64s
    """(n,) -1 where the parent is not in this micro-batch."""
    kept_paths: Paths
    """For a node that goes on from kept keys: which of them is at each position, (start,). Else None."""
    num_kept: int
    """Kept key rows, which stand before the micro-batch's own."""

    @property
    def offsets(self) -> Int64s:
        """(n,) where each node's tokens begin."""
        return np.cumsum(self.lengths) - self.lengths

    def num_kept_before(self) -> Int64s:
        """(n,) how many tokens of each node's path are kept ones: its first positions."""
        return self.starts[followed(self.parents)]

    def paths_before(self, wanted: Int64s) -> list[Int32s]:
        """For each wanted node the key rows of its path, (start,), in order of position."""
        full: dict[int, Int32s] = {}
        parents, offsets, lengths = self.parents, self.offsets + self.num_kept, self.lengths

        def before(node: int) -> Int32s:
            parent = int(parents[node])
            if parent >= 0:
                return full[parent]
            path = self.kept_paths[node]
            return np.zeros(0, np.int32) if path is None else path

        above, listed = set(parents[wanted].tolist()) - {-1}, parents.tolist()
        for node in range(len(listed) - 1, -1, -1):
            if node in above and listed[node] >= 0:
                above.add(listed[node])
        for node in sorted(above):
            first = int(offsets[node])
            own = np.arange(first, first + int(lengths[node]), dtype=np.int32)
            full[node] = np.concatenate([before(node), own])
        return [before(node) for node in wanted.tolist()]


@dataclass(frozen=True)
class Pieces:
    """p pieces. A piece begins where its path ends; the members of a family stand one after another
    as if they were one node (for positions of keys in a row, not true positions)."""

    firsts: Int64s
    """(p,) tokens on the path."""
    lasts: Int64s
    """(p,) tokens on the path and in the piece."""
    kept: Int64s
    """(p,) how many of the path are kept tokens, which nobody can ask again."""
    several: NDArray[np.bool_]
    """(p,) whether it is a family of more than one node."""
    links: Int64s
    """(p,) one piece below this that may go on in this one's row, or -1. No two have the same."""
    nodes: Int64s
    """(p,) the (first) node."""
    tokens: Int64s
    """(p,) the first token of that."""
    of_node: Int64s
    """(n,) which piece each node is in."""
    shifts: Int64s
    """(n,) tokens of the same family that stand before the node's own."""
    segments: Int64s
    """(n,) the node's number in its family."""

    @staticmethod
    def of(nodes: Nodes, short: int, max_queries: int) -> "Pieces":
        """Families are of nodes with fewer than `short` tokens, about `max_queries` tokens each."""
        num_nodes = len(nodes.lengths)
        labels = np.arange(num_nodes)
        shifts, segments = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
        little = np.flatnonzero((nodes.lengths < short) & (nodes.starts > 0))
        if len(little):
            family = _parent_ids(nodes)[little]
            order = np.argsort(family, kind="stable")
            little, (_, family) = little[order], np.unique(family[order], return_inverse=True)
            lengths = nodes.lengths[little]
            totals = np.bincount(family, weights=lengths).astype(np.int64)
            before = _before(lengths, family)
            # As many rows as are needed, of nearly equal size.
            num_rows = -(-totals // max_queries)
            row = before * num_rows[family] // totals[family]
            _, row = np.unique(family * (num_rows.max() + 1) + row, return_inverse=True)
            first = np.append(True, row[1:] != row[:-1])
            labels[little] = little[first][row]
            shifts[little] = _before(lengths, row)
            segments[little] = _before(np.ones_like(row), row)
        heads, of_node, counts = np.unique(labels, return_inverse=True, return_counts=True)
        firsts = nodes.starts[heads]
        tokens = np.bincount(of_node, weights=nodes.lengths, minlength=len(heads))
        lasts = firsts + tokens.astype(np.int64)
        several = counts > 1
        return Pieces(
            firsts=firsts,
            lasts=lasts,
            kept=nodes.num_kept_before()[heads],
            several=several,
            links=_links(nodes.parents, of_node, several, lasts),
            nodes=heads,
            tokens=nodes.offsets[heads],
            of_node=of_node,
            shifts=shifts,
            segments=segments,
        )


def followed(steps: Int64s) -> Int64s:
    """For each index the last one that is reached by going on to `steps` until that is -1."""
    here = np.arange(len(steps))
    at = np.where(steps < 0, here, steps)
    while not np.array_equal(further := at[at], at):
        at = further
    return at


def _parent_ids(nodes: Nodes) -> Int64s:
    """(n,) equal for siblings, also for those whose parent is a kept one.

    A kept row has one path, so that the last row of a path tells it from others.
    """
    num_nodes = len(nodes.parents)
    ids = nodes.parents.astype(np.int64, copy=True)
    for node in np.flatnonzero(ids < 0).tolist():
        path = nodes.kept_paths[node]
        if path is not None and len(path):
            ids[node] = num_nodes + int(path[-1])
    return ids


def _before(counts: Int64s, group: Int64s) -> Int64s:
    """The sum of counts that stand before each within its group; groups ascend."""
    before = np.cumsum(counts) - counts
    first = np.append(True, group[1:] != group[:-1])
    return before - before[first][group - group[0]]


def _links(parents: Int64s, of_node: Int64s, several: NDArray[np.bool_], lasts: Int64s) -> Int64s:
    """Each single node's longest child, a family only where no node of its own is a child."""
    links = np.full(len(several), -1)
    children = np.flatnonzero(parents >= 0)
    child, parent = of_node[children], of_node[parents[children]]
    child, parent = child[~several[parent]], parent[~several[parent]]
    best_last = np.lexsort((lasts[child], ~several[child]))
    links[parent[best_last]] = child[best_last]
    return links
