"""A tree of segments in, micro-batches out: what is computed together. Knows no MLX, no time.

A micro-batch is a run of the tree's nodes, in their order: parents come before children and
depth-first, so between two micro-batches only one path's keys and values are needed again.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mlxscore_server.row import Int64s
from mlxscore_server.tree import Tree


@dataclass(frozen=True)
class MicroBatch:
    """The nodes [first, last) of a tree, which run in one forward pass."""

    first: int
    last: int
    length: int | None = None
    """None: packed, exactly the nodes' tokens. Else left-padded: each node is padded to this."""


def cut_packed(tree: Tree, max_batch_tokens: int) -> list[MicroBatch]:
    """Micro-batches of at most `max_batch_tokens` tokens, of nearly equal size.

    No node may be longer than that (`grow` cuts what is).
    """
    lengths = tree.lengths.tolist()
    total = int(tree.offsets[-1])
    if not total:
        return []
    enough = total / -(-total // max_batch_tokens)
    edges, tokens = [0], 0
    for node, length in enumerate(lengths):
        if tokens and (tokens >= enough or tokens + length > max_batch_tokens):
            edges.append(node)
            tokens = 0
        tokens += length
    edges.append(len(lengths))
    return [MicroBatch(first, last) for first, last in pairwise(edges)]


def cut_padded(
    tree: Tree,
    *,
    max_batch_tokens: int,
    batch_overhead: int,
    pad: bool = True,
    length_multiple: int = 1,
) -> list[MicroBatch]:
    """Micro-batches of at most `max_batch_tokens` padded tokens; of a tree of roots, shortest first.

    A node longer than the budget runs alone. Among all ways to cut the nodes, which are sorted by
    length, the one with the least cost is taken: padded tokens plus `batch_overhead` tokens a
    micro-batch (what starting one costs on this device). Without `pad` only nodes of equal length
    meet. Where there is padding anyway, lengths are rounded up to `length_multiple`, so that few
    shapes occur.
    """
    lengths = tree.lengths
    if not len(lengths):
        return []
    distinct, counts = np.unique(lengths, return_counts=True)
    ends = np.cumsum(counts)
    batches: list[MicroBatch] = []
    for first, last in _bands(
        distinct, counts, max_batch_tokens, batch_overhead, pad, length_multiple
    ):
        length = int(distinct[last])
        if first < last:
            length = -(-length // length_multiple) * length_multiple
        start, stop = int(ends[first] - counts[first]), int(ends[last])
        cap = max(1, max_batch_tokens // length)
        # As many micro-batches as the budget asks for, of nearly equal size.
        num_batches = -(-(stop - start) // cap)
        edges = [start + (stop - start) * i // num_batches for i in range(num_batches + 1)]
        batches += [MicroBatch(a, b, length) for a, b in pairwise(edges)]
    return batches


def _bands(
    lengths: Int64s,
    counts: Int64s,
    max_batch_tokens: int,
    batch_overhead: int,
    pad: bool,
    length_multiple: int,
) -> list[tuple[int, int]]:
    """Bands of distinct lengths [first, last] that are padded to one length, of least total cost."""
    if not pad:
        return [(i, i) for i in range(len(lengths))]
    # best[i]: the least cost of the i shortest lengths; choice[i]: where their last band begins.
    total = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(len(lengths) + 1)
    choice = np.zeros(len(lengths) + 1, dtype=np.int64)
    rounded = -(-lengths // length_multiple) * length_multiple
    for i in range(1, len(lengths) + 1):
        rows = total[i] - total[:i]
        length = np.full(i, rounded[i - 1])
        length[i - 1] = lengths[i - 1]  # a band of one length has no padding to round
        num_batches = -(-rows // np.maximum(1, max_batch_tokens // length))
        cost = best[:i] + rows * length + num_batches * batch_overhead
        choice[i] = int(np.argmin(cost))
        best[i] = cost[choice[i]]
    bands: list[tuple[int, int]] = []
    i = len(lengths)
    while i > 0:
        first = int(choice[i])
        bands.append((first, i - 1))
        i = first
    return bands[::-1]
