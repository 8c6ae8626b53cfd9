"""Which pieces of a micro-batch share an attention block: the cheapest way that is found quickly.

A block costs something by itself, so pieces of unlike shape share one where the padding costs less.
There are two kinds:

    causal   every row's queries begin at the block's least prefix P, so that no mask is needed. A row
             with a longer path asks for what is between too, and those answers are thrown away: its
             own tokens again, or, where these are kept and have no queries, anything.
    masked   a row's queries are its pieces' only; rows have any prefix; pairs are dearer.

A piece and the one it links to, in the same block, are one row: whoever asks for a continuation has
the prompt's queries in the row anyway.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxscore_server.block_costs import BlockCosts, Float64s
from mlxscore_server.block_pieces import Pieces
from mlxscore_server.row import Int64s

_MOST_GROUPS = 24
"""Groups that the search starts from, so that it takes 1 or 2 ms; more are joined by like shape first."""


@dataclass(frozen=True)
class Groups:
    """G groups, by their first piece."""

    of_piece: Int64s
    """(p,)"""
    causal: NDArray[np.bool_]
    """(G,) else masked."""


def group(pieces: Pieces, costs: BlockCosts) -> Groups:
    """Begin with groups of equal shape and join two at a time, those that save most, while any do."""
    of_piece = _by_shape(pieces)
    found = _Shapes.of(pieces, of_piece, costs.query_multiple)
    num_groups = len(found.rows)
    # Pieces of one group that link to the other, either way: rows that joining saves.
    linked = np.flatnonzero(pieces.links >= 0)
    pairs = of_piece[linked] * num_groups + of_piece[pieces.links[linked]]
    links = np.bincount(pairs, minlength=num_groups**2).astype(np.float64)
    links = links.reshape(num_groups, num_groups)
    links += links.T
    price = found.price(costs)
    joined = found.at((slice(None), None)).joined(found, links)
    gain = price[:, None] + price - joined.price(costs)
    np.fill_diagonal(gain, -np.inf)
    root = np.arange(num_groups)
    while num_groups > 1:
        a, b = divmod(int(np.argmax(gain)), num_groups)
        if gain[a, b] <= 0:
            break
        found.put(a, found.at(a).joined(found.at(b), links[a, b]))
        price[a] += price[b] - gain[a, b]
        links[a] += links[b]
        links[:, a] += links[:, b]
        root[root == b] = a
        gain[b], gain[:, b] = -np.inf, -np.inf
        more = price[a] + price - found.at(a).joined(found, links[a]).price(costs)
        more[gain[a] == -np.inf] = -np.inf
        gain[a], gain[:, a] = more, more
    of_piece = root[of_piece]
    joint, first, compact = np.unique(of_piece, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    final = found.at(joint[order])
    return Groups(rank[compact], final.causal(costs) <= final.masked(costs))


@dataclass(frozen=True)
class _Shapes:
    """What the prices of blocks depend on. Whole numbers as float64: numpy divides these much faster."""

    rows: Float64s
    first: Float64s
    """The least path."""
    last: Float64s
    """The most tokens of a row's path and its own."""
    own: Float64s
    """The most queries of a row that asks nothing again; never too few, now and then too many."""
    families: Float64s
    """1 where there is a family of more than one node, which needs a mask, else 0."""
    gathered: Float64s
    """0 where the rows are all of consecutive tokens, equally many from position 0, else 1."""

    @staticmethod
    def of(pieces: Pieces, group: Int64s, query_multiple: int) -> "_Shapes":
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group)
        begins = np.cumsum(counts) - counts

        def most(values: NDArray[Any]) -> Float64s:
            return np.maximum.reduceat(values[order].astype(np.float64), begins)

        sizes = pieces.lasts - pieces.firsts
        linked = np.flatnonzero(pieces.links >= 0)
        inside = group[linked][group[linked] == group[pieces.links[linked]]]
        chains = np.bincount(inside, minlength=len(counts))
        first, last, longest = -most(-pieces.firsts), most(pieces.lasts), most(sizes)
        num_tokens = most(pieces.tokens + sizes) + most(-pieces.tokens)
        whole = (-most(-sizes) == last) & (last % query_multiple == 0)
        whole &= num_tokens == counts * last
        return _Shapes(
            rows=(counts - chains).astype(np.float64),
            first=first,
            last=last,
            own=np.where(chains, last - first, longest),
            families=most(pieces.several),
            gathered=(~whole).astype(np.float64),
        )

    def at(self, index: Any) -> "_Shapes":
        return _Shapes(
            self.rows[index],
            self.first[index],
            self.last[index],
            self.own[index],
            self.families[index],
            self.gathered[index],
        )

    def put(self, index: int, shape: "_Shapes") -> None:
        self.rows[index], self.first[index], self.last[index] = shape.rows, shape.first, shape.last
        self.own[index], self.families[index] = shape.own, shape.families
        self.gathered[index] = shape.gathered

    def joined(self, other: "_Shapes", links: Float64s) -> "_Shapes":
        """Each with each; `links` pieces of the one go on in the other."""
        first, last = np.minimum(self.first, other.first), np.maximum(self.last, other.last)
        longest = np.where(links, self.own + other.own, np.maximum(self.own, other.own))
        return _Shapes(
            rows=self.rows + other.rows - links,
            first=first,
            last=last,
            own=np.minimum(longest, last - first),
            families=np.maximum(self.families, other.families),
            gathered=np.ones_like(first),
        )

    def causal(self, costs: BlockCosts) -> Float64s:
        """The price as a causal block; infinite where it cannot be one."""
        price = costs.causal(self.rows, self.first, self.last, self.gathered)
        return np.where(self.families, np.inf, price)

    def masked(self, costs: BlockCosts) -> Float64s:
        return costs.masked(self.rows, self.own, self.last)

    def price(self, costs: BlockCosts) -> Float64s:
        return np.minimum(self.causal(costs), self.masked(costs))


def _by_shape(pieces: Pieces) -> Int64s:
    """Groups of equal shape, or, where these are too many, of shapes that are nearly equal."""
    width = 1
    while True:
        path, own = pieces.firsts // width, (pieces.lasts - pieces.firsts) // width
        shape = (path << 32 | own) << 1 | pieces.several
        shapes, group = np.unique(shape, return_inverse=True)
        if len(shapes) <= _MOST_GROUPS:
            return group
        width *= 2
