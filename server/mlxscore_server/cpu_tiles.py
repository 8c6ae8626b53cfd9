"""How a packed micro-batch's attention blocks are cut for threads and caches. Knows no MLX.

A tile is a few rows of a block, a run of their queries, and the keys that any of these sees: of
causal rows' keys the later ones are left out, of windowed ones the earlier ones too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxscore_server.blocks import Block, Blocks

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]

HIDDEN = np.float32(-1e9)
"""Added to a score that must not count: finite, so that a row of nothing else is no NaN."""

# Scores of a tile, of one key head: 256 KiB of float32, half of what many cores have for a cache.
_SCORES = 2**16
# Queries of a tile: fewer leave out more of a causal block, more make better products. And at least
# so many (where keys are very long), of at most so many scores in all.
_MOST_QUERIES, _LEAST_QUERIES, _MOST_SCORES = 64, 16, 2**23


@dataclass(frozen=True)
class Runs:
    """Numbers of rows, (b, n): `first + i * step + j`, so that a view does for a gather."""

    first: int
    step: int

    def of(self, rows: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
        """A view, (b, n, ...), of rows (N, ...)."""
        there = rows[self.first :]
        strides = (self.step * rows.strides[0], *rows.strides)
        return np.lib.stride_tricks.as_strided(there, (*shape, *rows.shape[1:]), strides)


@dataclass(frozen=True, eq=False)
class Tile:
    """b rows of n queries and m keys."""

    shape: tuple[int, int, int]
    """b, n, m"""
    queries: Runs | Int32s
    """(b, n) tokens that ask."""
    answered: Runs | Int32s
    """(b, n) the same tokens, but -1 where the answer is thrown away."""
    keys: Runs | Int32s
    """(b, m) key rows."""
    mask: Floats | None
    """Added to the scores of the last keys; (b, 1, n, as many) or (n, as many)."""

    @property
    def num_scores(self) -> int:
        """For one query head."""
        return self.shape[0] * self.shape[1] * self.shape[2]


def tiles(blocks: Blocks, window: int | None, heads: int, *, parts: int) -> list[Tile]:
    """All tiles of a layer whose key heads are each shared by `heads` query heads.

    Cut so that there are at least about `parts` of them, where rows allow.
    """
    answered = _answered(blocks)
    found: list[Tile] = []
    for block, tokens in zip(blocks.blocks, answered, strict=True):
        found += _Cutter(block, tokens, window, heads).tiles(parts)
    # The largest first: at the end all threads are done at about the same time.
    return sorted(found, key=lambda tile: -tile.num_scores)


def _answered(blocks: Blocks) -> Iterator[Int32s]:
    """For each block (B, Q), whose answer each query is; -1 for padding and what is asked again."""
    sizes = [block.queries.size for block in blocks.blocks]
    if blocks.out is None:
        tokens = np.arange(sum(sizes), dtype=np.int32)
    else:
        tokens = np.full(sum(sizes), -1, np.int32)
        tokens[blocks.out] = np.arange(len(blocks.out), dtype=np.int32)
    parts = np.split(tokens, np.cumsum(sizes)[:-1])
    for block, part in zip(blocks.blocks, parts, strict=True):
        yield part.reshape(block.queries.shape)


def tile_shape(
    num_rows: int, num_queries: int, num_keys: int, heads: int, parts: int
) -> tuple[int, int]:
    """Rows and queries of a tile."""
    of_query = heads * num_keys
    most = min(_MOST_QUERIES, num_queries, max(1, _MOST_SCORES // of_query))
    queries = min(most, max(_LEAST_QUERIES, _SCORES // of_query))
    rows = min(-(-num_rows // parts), _SCORES // (of_query * queries))
    return max(1, rows), queries


class _Cutter:
    """Cuts one block."""

    def __init__(self, block: Block, answered: Int32s, window: int | None, heads: int) -> None:
        self._block, self._answered = block, answered
        self._window, self._heads = window, heads
        self._masks: dict[tuple[int, int, int], Floats | None] = {}

    def tiles(self, parts: int) -> list[Tile]:
        num_rows, num_queries = self._answered.shape
        num_keys = self._block.keys.shape[1]
        rows_in_tile, step = tile_shape(num_rows, num_queries, num_keys, self._heads, parts)
        found: list[Tile] = []
        for row in range(0, num_rows, rows_in_tile):
            rows = slice(row, min(row + rows_in_tile, num_rows))
            asked = np.flatnonzero((self._answered[rows] >= 0).any(axis=0))
            if not len(asked):
                continue
            stop = int(asked[-1]) + 1
            for first in range(int(asked[0]), stop, step):
                found.append(self._tile(rows, slice(first, min(first + step, stop))))
        return found

    def _tile(self, rows: slice, queries: slice) -> Tile:
        seen, mask = self._seen(rows, queries)
        asked, keys = self._block.queries[rows, queries], self._block.keys[rows, seen]
        return Tile(
            shape=(*asked.shape, keys.shape[1]),
            queries=found_in_runs(asked),
            answered=found_in_runs(self._answered[rows, queries]),
            keys=found_in_runs(keys),
            mask=mask,
        )

    def _seen(self, rows: slice, queries: slice) -> tuple[slice, Floats | None]:
        """The keys that any of the queries sees, and a mask where not all see all of them."""
        prefix = self._block.prefix
        if prefix is None:
            return self._seen_through_mask(rows, queries)
        # Key j of a causal block stands at position j, query i at prefix + i.
        first, last = prefix + int(queries.start), prefix + int(queries.stop) - 1
        start = 0 if self._window is None else max(0, first - self._window + 1)
        keys = slice(start, last + 1)
        key = queries.start, queries.stop, start
        if key not in self._masks:
            query = np.arange(first, last + 1)[:, None]
            self._masks[key] = _mask(np.arange(start, last + 1), query, self._window)
        return keys, self._masks[key]

    def _seen_through_mask(self, rows: slice, queries: slice) -> tuple[slice, Floats | None]:
        block = self._block
        query = block.query_positions[rows, queries][:, :, None]
        asks = block.query_segments[rows, queries][:, :, None]
        owner, position = block.key_segments[rows], block.key_positions[rows]
        start = 0
        if self._window is not None:
            # Up to where the first query stands all keys are the path, key j at position j.
            start = max(0, int(query.min()) - self._window + 1)
        shown = (owner != -2).any(axis=0)
        stop = int(np.flatnonzero(shown)[-1]) + 1
        owner, position = owner[:, None, start:stop], position[:, None, start:stop]
        hidden = ((owner != -1) & (owner != asks)) | (position > query)
        if self._window is not None:
            hidden |= position <= query - self._window
        mask = additive(hidden)
        return slice(start, stop), None if mask is None else mask[:, None]


def _mask(keys: NDArray[np.int64], query: NDArray[np.int64], window: int | None) -> Floats | None:
    hidden = keys > query
    if window is not None:
        hidden |= keys <= query - window
    return additive(hidden)


def additive(hidden: NDArray[np.bool_]) -> Floats | None:
    """What is added to scores (..., n, m), from the first key on that is hidden from somebody."""
    columns = np.flatnonzero(hidden.any(axis=tuple(range(hidden.ndim - 1))))
    if not len(columns):
        return None
    return np.where(hidden[..., columns[0] :], HIDDEN, np.float32(0))


def found_in_runs(rows: Int32s) -> "Runs | Int32s":
    """(b, n) numbers of rows as `Runs` where that is what they are."""
    first = rows[:, 0]
    step = int(first[1] - first[0]) if len(first) > 1 else 0
    if int(rows.min()) < 0 or (np.diff(first) != step).any() or (np.diff(rows, axis=1) != 1).any():
        return rows
    return Runs(int(first[0]), step)
