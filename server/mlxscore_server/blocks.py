"""Attention blocks of a packed micro-batch: which tokens ask, and which keys each of them sees.

A micro-batch's key rows are K kept ones, then its own T tokens: j < K is kept row j, K + t token t.
Everything here is indices; knows no MLX.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxscore_server.block_costs import BlockCosts
from mlxscore_server.block_groups import group
from mlxscore_server.block_pieces import Int32s, Nodes, Paths, Pieces, followed
from mlxscore_server.row import Int64s


@dataclass(frozen=True, eq=False)
class Block:
    """B rows of Q queries and K keys, padded; int32.

    Query i of row b sees key j of that row if `key_segments[b, j]` is -1 or
    `query_segments[b, i]`, and `key_positions[b, j] <= query_positions[b, i]`, and, in a layer with
    a window, `key_positions[b, j] > query_positions[b, i] - window`.
    """

    queries: Int32s
    """(B, Q) which of the T tokens. Padding repeats one; so do rows that ask again for their path."""
    keys: Int32s
    """(B, K) which key row. Padding repeats one."""
    prefix: int | None
    """P: a causal block. Query i of every row sees exactly keys 0 to P + i, K = P + Q, padding stands
    at the end of both, and key j at position j. None: which keys are seen needs a mask."""
    query_segments: Int32s
    """(B, Q)"""
    query_positions: Int32s
    """(B, Q)"""
    key_segments: Int32s
    """(B, K) -1: on the path of all the row's queries that stand behind it; -2: padding (in a causal
    block padding is not marked: no true query sees that far); else whose own token it is."""
    key_positions: Int32s
    """(B, K)"""
    lengths: Int32s
    """(B,) queries that are not padding."""
    whole: bool
    """Whether queries are consecutive tokens from `queries[0, 0]` on, and the keys the same tokens:
    a reshape does for a gather."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks of a micro-batch of T tokens; each token is answered in one of them."""

    blocks: list[Block]
    out: Int32s | None
    """(T,) where each token's answer is among all the blocks' queries, B * Q a block, one block after
    the other. None where that is 0, 1, 2, ... and there are no others."""


@dataclass(frozen=True)
class _Plan:
    """A block before its arrays are made."""

    tails: Int64s
    """(B,) each row's last piece."""
    heads: Int64s
    """(B,) each row's first piece."""
    begins: Int64s
    """(B,) where in the row's keys the queries begin."""
    prefix: int | None
    num_queries: int
    num_keys: int


def cut(
    lengths: Int64s,
    starts: Int64s,
    parents: Int64s,
    kept_paths: Paths,
    costs: BlockCosts,
    *,
    num_kept: int,
) -> Blocks:
    """The blocks of a micro-batch of n nodes, parents before children.

    `lengths` (n,), `starts` (n,) the first token's position, `parents` (n,) -1 where the parent is
    not in this micro-batch. Then `kept_paths` has, unless the node is a root, which of the
    `num_kept` kept rows is at each position before it. A kept row is on one path only.
    """
    if not len(lengths):
        return Blocks([], None)
    nodes = Nodes(lengths, starts, parents, kept_paths, num_kept)
    pieces = Pieces.of(nodes, costs.short, costs.max_queries)
    plans, tail_of_piece = _plans(pieces, costs)
    return _Tokens(nodes, pieces).fill(plans, tail_of_piece)


def _plans(pieces: Pieces, costs: BlockCosts) -> tuple[list[_Plan], Int64s]:
    """Blocks, and for each piece the last piece of its row."""
    groups = group(pieces, costs)
    here = np.arange(len(pieces.links))
    goes_on = groups.of_piece[pieces.links] == groups.of_piece  # means nothing without a link
    onwards = np.where((pieces.links >= 0) & goes_on, pieces.links, -1)
    back = np.full_like(onwards, -1)
    back[onwards[onwards >= 0]] = here[onwards >= 0]
    tail_of_piece, head_of_piece = followed(onwards), followed(back)
    order = np.argsort(groups.of_piece, kind="stable")
    ends = np.cumsum(np.bincount(groups.of_piece))
    plans: list[_Plan] = []
    for members, causal in zip(np.split(order, ends[:-1]), groups.causal.tolist(), strict=True):
        tails = members[onwards[members] < 0]
        heads = head_of_piece[tails]
        first = costs.causal_begin(pieces.firsts[members].min()).astype(np.int64)
        begins = np.full(len(tails), first) if causal else pieces.firsts[heads]
        lasts = pieces.lasts[tails]
        shape = (costs.causal_shape if causal else costs.masked_shape)(
            np.array([(lasts - begins).max()], np.float64), np.array([lasts.max()], np.float64)
        )
        num_queries, num_keys = int(shape[0][0]), int(shape[1][0])
        num_blocks = -(-len(tails) // max(1, costs.max_block_keys // num_keys))
        for rows in np.array_split(np.arange(len(tails)), num_blocks):
            prefix = int(first) if causal else None
            plans.append(
                _Plan(tails[rows], heads[rows], begins[rows], prefix, num_queries, num_keys)
            )
    return plans, tail_of_piece


class _Tokens:
    """A micro-batch's T tokens, and how blocks are filled with them."""

    def __init__(self, nodes: Nodes, pieces: Pieces) -> None:
        self._nodes, self._pieces = nodes, pieces
        node = np.repeat(np.arange(len(nodes.lengths)), nodes.lengths)
        index = np.arange(len(node))
        self._positions = nodes.starts[node] + index - nodes.offsets[node]
        # Where a token stands among its row's keys: a family's members stand one behind the other.
        self._columns = self._positions + pieces.shifts[node]
        self._piece = pieces.of_node[node]
        several = pieces.several[self._piece]
        self._query_segments = np.where(several, pieces.segments[node], 0)
        self._key_segments = np.where(several, pieces.segments[node], -1)

    def fill(self, plans: list[_Plan], tail_of_piece: Int64s) -> Blocks:
        num_tokens = len(self._piece)
        block_of_tail = np.zeros(len(tail_of_piece), np.int64)
        row_of_tail = np.zeros(len(tail_of_piece), np.int64)
        for i, plan in enumerate(plans):
            block_of_tail[plan.tails] = i
            row_of_tail[plan.tails] = np.arange(len(plan.tails))
        tail = tail_of_piece[self._piece]
        block, row = block_of_tail[tail], row_of_tail[tail]
        order = np.argsort(block, kind="stable")
        ends = np.cumsum(np.bincount(block, minlength=len(plans)))
        paths = iter(self._nodes.paths_before(self._pieces.nodes[_heads(plans)]))
        out = np.empty(num_tokens, np.int32)
        blocks: list[Block] = []
        answers = 0
        for plan, tokens in zip(plans, np.split(order, ends[:-1]), strict=True):
            rows = row[tokens]
            queries = self._columns[tokens] - plan.begins[rows]
            out[tokens] = answers + rows * plan.num_queries + queries
            keys = self._keys(plan, tokens, rows, paths)
            blocks.append(self._block(plan, tokens, rows, queries, keys))
            answers += len(plan.tails) * plan.num_queries
        identity = answers == num_tokens and np.array_equal(out, np.arange(num_tokens))
        return Blocks(blocks, None if identity else out)

    def _keys(self, plan: _Plan, tokens: Int64s, rows: Int64s, paths: Iterator[Int32s]) -> Int32s:
        num_kept = self._nodes.num_kept
        keys = np.empty((len(plan.tails), plan.num_keys), np.int32)
        keys[:] = self._pieces.tokens[plan.heads, None] + num_kept
        for row, path in zip(keys, paths, strict=False):
            row[: len(path)] = path
        keys[rows, self._columns[tokens]] = tokens + num_kept
        return keys

    def _block(
        self, plan: _Plan, tokens: Int64s, rows: Int64s, queries: Int64s, keys: Int32s
    ) -> Block:
        lengths = (self._pieces.lasts[plan.tails] - plan.begins).astype(np.int32)
        if plan.prefix is not None:
            return _causal(keys, self._nodes.num_kept, plan.prefix, lengths)
        columns = self._columns[tokens]
        first_tokens = self._pieces.tokens[plan.heads]

        def asked(values: Int64s, padding: Int64s) -> Int32s:
            array = np.empty((len(keys), plan.num_queries), np.int32)
            array[:] = padding[:, None]
            array[rows, queries] = values
            return array

        column = np.arange(plan.num_keys, dtype=np.int32)
        key_segments = np.where(column < plan.begins[:, None], np.int32(-1), np.int32(-2))
        key_segments[rows, columns] = self._key_segments[tokens]
        key_positions = np.broadcast_to(column, keys.shape).copy()
        key_positions[rows, columns] = self._positions[tokens]
        return Block(
            # Padding asks what the row's first query asks, so that it sees something.
            queries=asked(tokens, first_tokens),
            keys=keys,
            prefix=None,
            query_segments=asked(self._query_segments[tokens], np.zeros_like(plan.begins)),
            query_positions=asked(self._positions[tokens], plan.begins),
            key_segments=key_segments,
            key_positions=key_positions,
            lengths=lengths,
            whole=False,
        )


def _heads(plans: list[_Plan]) -> Int64s:
    return np.concatenate([plan.heads for plan in plans])


def _causal(keys: Int32s, num_kept: int, prefix: int, lengths: Int32s) -> Block:
    """A causal block from its keys, which from `prefix` on are the queries; kept ones have none, and
    any will do in their place: nobody reads what they are answered."""
    tokens = keys[:, prefix:] - np.int32(num_kept)
    queries = np.maximum(tokens, 0)
    same = prefix == 0 and bool((lengths == queries.shape[1]).all())
    first = int(queries[0, 0])
    position = np.arange(keys.shape[1], dtype=np.int32)
    return Block(
        queries=queries,
        keys=keys,
        prefix=prefix,
        query_segments=np.broadcast_to(np.int32(0), queries.shape),
        query_positions=np.broadcast_to(position[prefix:], queries.shape),
        key_segments=np.broadcast_to(np.int32(-1), keys.shape),
        key_positions=np.broadcast_to(position, keys.shape),
        lengths=lengths,
        whole=same and bool((tokens.ravel() == np.arange(first, first + tokens.size)).all()),
    )
