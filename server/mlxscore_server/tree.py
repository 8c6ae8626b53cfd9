"""Rows to a tree of segments: what rows begin with alike is computed once. Knows no MLX, no time.

A node is a run of tokens that stands at the same place, after the same tokens, in all rows below
it; the nodes from a root to a row's leaf spell what the model reads of that row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxscore_server.common_prefixes import Prefixes, Texts
from mlxscore_server.row import Ids, Int64s, Row


@dataclass(frozen=True)
class Tree:
    """N nodes with T tokens for R rows with P scored tokens, in the order in which they run.

    Parents come before children and each subtree is one run of nodes (depth first), so that, cut
    anywhere, only the nodes on one path are still needed after the cut.
    """

    tokens: Ids
    """(T,) all nodes' tokens, node after node."""
    offsets: Int64s
    """(N + 1,) node i's tokens, at least one, are `tokens[offsets[i]:offsets[i + 1]]`."""
    starts: Int64s
    """(N,) at which position of its rows each node begins."""
    parents: Int64s
    """(N,) -1 for roots; a node begins where its parent ends."""
    leaves: Int64s
    """(R,) the node in which each row's inputs end."""
    at: Int64s
    """(P,) for each scored token, rows in the given order: which of `tokens` predicts it."""
    ends: Int64s
    """(R,) where each row's part of `at` ends."""

    @property
    def lengths(self) -> Int64s:
        """(N,) tokens of each node."""
        return np.diff(self.offsets)

    @property
    def stops(self) -> Int64s:
        """(N,) the position after each node's last token."""
        return self.starts + self.lengths


def grow(rows: Sequence[Row], *, node_cost: int, longest: int, share: bool = True) -> Tree:
    """The tree of `rows`, in which a prefix has a node of its own where that saves `node_cost` tokens.

    A prefix in common that ends at depth d, below a node that ends at depth a, and goes on in c
    ways (to end there is one) saves (d - a)(c - 1) tokens; where that is less than `node_cost`, its
    rows compute it each for themselves. With a cost of 1 every prefix is computed once. Without
    `share` only rows with equal inputs meet. Rows of different salt never do.

    Siblings run shortest first, those without children before those with; roots by the tokens
    below them, so that rows of like length that share nothing are neighbours. The order of `rows`
    has no influence.

    A segment of more than `longest` tokens is a chain of nodes, all of them full but the last: full
    ones take the fewest micro-batches, and the rest can share one with what comes next.
    """
    if not rows:
        none = np.zeros(0, np.int64)
        return Tree(np.zeros(0, np.int32), np.zeros(1, np.int64), none, none, none, none, none)
    texts, text_of_row = Texts.of(rows)
    segments, leaf_of_text = _segments(texts, node_cost, share)
    offsets = np.append(0, np.cumsum(segments.lengths))
    leaves = leaf_of_text[text_of_row]
    first = np.array([row.start - 1 for row in rows])
    after = texts.lengths[text_of_row]
    at = _predicting(first, after, leaves, segments, offsets)

    # A chain's tokens stand where its segment's did: only the nodes are cut.
    pieces = -(-segments.lengths // longest)
    last = np.cumsum(pieces) - 1
    head = last + 1 - pieces
    index = np.arange(int(pieces.sum()))
    piece = index - np.repeat(head, pieces)
    parents = index - 1
    parents[head] = np.where(segments.parents < 0, -1, last[segments.parents])
    return Tree(
        tokens=texts.runs(segments.sources, segments.lengths),
        offsets=np.append(np.repeat(offsets[:-1], pieces) + piece * longest, offsets[-1]),
        starts=np.repeat(segments.starts, pieces) + piece * longest,
        parents=parents,
        leaves=last[leaves],
        at=at,
        ends=np.cumsum(after - first),
    )


@dataclass(frozen=True)
class _Segments:
    """Nodes before long ones are cut, in the order in which they run."""

    sources: Int64s
    """Where in the texts' `flat` each one's tokens are."""
    lengths: Int64s
    starts: Int64s
    parents: Int64s


def _segments(texts: Texts, node_cost: int, share: bool) -> tuple[_Segments, Int64s]:
    """The segments, and for each text the one in which it ends."""
    num_texts = len(texts.lengths)
    common = texts.common() if share else np.zeros(num_texts, np.int64)
    prefixes = Prefixes.of(common.tolist()).worth(node_cost)
    # Nodes: the prefixes, and for each text that goes on after its prefix, or has none, the rest.
    num_prefixes = len(prefixes.depths) - 1
    depths, homes = np.array(prefixes.depths), np.array(prefixes.homes)
    rests = np.flatnonzero(texts.lengths > depths[homes])
    leaves = homes - 1
    leaves[rests] = num_prefixes + np.arange(len(rests))
    parents = np.concatenate([np.array(prefixes.parents[1:], np.int64), homes[rests]]) - 1
    a_text = np.concatenate([np.array(prefixes.texts[1:], np.int64), rests])
    stops = np.concatenate([depths[1:], texts.lengths[rests]])
    starts = np.where(parents < 0, 0, stops[parents])
    lengths = stops - starts

    order = np.array(_depth_first(parents, lengths, a_text))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    above = parents[order]
    segments = _Segments(
        sources=(texts.firsts[a_text] + starts)[order],
        lengths=lengths[order],
        starts=starts[order],
        parents=np.where(above < 0, -1, place[above]),
    )
    return segments, place[leaves]


def _depth_first(parents: Int64s, lengths: Int64s, texts: Int64s) -> list[int]:
    """All nodes, each followed by what is below it, siblings as `grow` says."""
    num_nodes = len(parents)
    children = np.bincount(parents + 1, minlength=num_nodes + 1)
    roots = parents < 0
    root = np.where(roots, np.arange(num_nodes), parents)
    while not roots[root].all():
        root = root[root]
    totals = np.bincount(root, weights=lengths, minlength=num_nodes)
    # The last key counts first; texts stand in a fixed order and no two siblings have one in common.
    keys = (texts, np.where(roots, totals, lengths), (children[1:] > 0) & ~roots, parents)
    # Backwards, since a stack gives back last what it got first.
    backwards = np.lexsort(keys)[::-1].tolist()
    stops = num_nodes - (np.cumsum(children) - children)
    begins, ends = (stops - children).tolist(), stops.tolist()
    order: list[int] = []
    stack: list[int] = backwards[begins[0] :]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += backwards[begins[node + 1] : ends[node + 1]]
    return order


def _predicting(
    first: Int64s, after: Int64s, leaves: Int64s, segments: _Segments, offsets: Int64s
) -> Int64s:
    """Which of the tree's tokens stand at positions `first` up to `after` of each row, rows in order.

    `leaves` are segments, which end at `after`; `offsets` say where each one's tokens begin.
    """
    row, node, stop = np.arange(len(leaves)), leaves, after
    parts: list[tuple[Int64s, Int64s, Int64s]] = []
    while len(row):
        begin = np.maximum(first[row], segments.starts[node])
        parts.append((row, offsets[node] + begin - segments.starts[node], stop - begin))
        earlier = begin > first[row]
        row, node, stop = row[earlier], segments.parents[node[earlier]], begin[earlier]
    # Each row's parts were found from its end to its beginning.
    of_row, source, length = (np.concatenate(each) for each in zip(*parts[::-1], strict=True))
    order = np.argsort(of_row, kind="stable")
    return _ranges(source[order], length[order])


def _ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """`starts[i], starts[i] + 1, ...`, `lengths[i]` of them, for all i one after the other."""
    steps = np.ones(lengths.sum(), np.int64)
    steps[0] = starts[0]
    steps[np.cumsum(lengths[:-1])] = np.diff(starts) - lengths[:-1] + 1
    return np.cumsum(steps, out=steps)
