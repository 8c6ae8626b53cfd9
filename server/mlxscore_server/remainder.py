"""What of a tree is left to compute when its beginnings are kept from earlier. Knows no MLX."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlxscore_server.prefix_index import PrefixIndex
from mlxscore_server.prefix_path import Path
from mlxscore_server.row import Int64s, Row
from mlxscore_server.tree import Tree


@dataclass(frozen=True)
class Known:
    """Scored tokens that are predicted where the hidden state is kept."""

    path: Path
    start: int
    pairs: Int64s
    """Which they are, in the order of the tree's `at`."""
    positions: Int64s
    """Where each is predicted, in [start, path.depth)."""

    def places(self) -> Int64s:
        """(n, 2) slab and row of each one's hidden state, as they are now."""
        return self.path.hidden_from(self.start)[self.positions - self.start]


@dataclass(frozen=True)
class Remainder:
    """A tree without what is kept, and what its nodes continue."""

    tree: Tree
    """`at` is -1 where a kept position predicts; `leaves` -1 where nothing of a row is left."""
    paths: tuple[Path | None, ...]
    """(N,) what each root continues; None where it begins a text, and for nodes with a parent."""
    owners: tuple[int, ...]
    """(N,) a row that goes through each node, the first in the given order."""
    cached: tuple[int, ...]
    """(R,) how many tokens of each row are kept."""
    known: tuple[Known, ...]
    """All pairs whose `at` is -1."""


def remainder(tree: Tree, rows: Sequence[Row], index: PrefixIndex, least: int) -> Remainder:
    """Leave out what `index` knows of the tree's tokens.

    A position that is to be scored and whose hidden state is not kept is computed, and all that
    comes after it too. Fewer than `least` tokens from a text's beginning are computed anew: to fetch
    them costs more.
    """
    num_nodes = len(tree.starts)
    owners = _owners(tree, len(rows))
    if not index.num_entries:
        return Remainder(tree, (None,) * num_nodes, owners, (0,) * len(rows), ())
    found = _walk(tree, rows, index, owners)
    usable = np.array([0 if path is None else path.depth for path in found])
    _limit_to_hidden(tree, found, usable)
    _settle(tree, usable, least)
    return _without(tree, rows, owners, found, usable)


def _owners(tree: Tree, num_rows: int) -> tuple[int, ...]:
    owners = np.full(len(tree.starts), num_rows)
    np.minimum.at(owners, tree.leaves, np.arange(num_rows))
    listed, parents = owners.tolist(), tree.parents.tolist()
    for node in range(len(listed) - 1, -1, -1):
        parent = parents[node]
        if parent >= 0 and listed[node] < listed[parent]:
            listed[parent] = listed[node]
    return tuple(listed)


def _walk(
    tree: Tree, rows: Sequence[Row], index: PrefixIndex, owners: tuple[int, ...]
) -> list[Path | None]:
    """(N,) the kept path that ends in each node; None where none does."""
    offsets: list[int] = tree.offsets.tolist()
    starts: list[int] = tree.starts.tolist()
    parents: list[int] = tree.parents.tolist()
    found: list[Path | None] = []
    for node, parent in enumerate(parents):
        above = found[parent] if parent >= 0 else index.root(rows[owners[node]].salt)
        if above is None or above.depth < starts[node]:
            found.append(None)
            continue
        path = index.walk(above, tree.tokens[offsets[node] : offsets[node + 1]])
        found.append(path if path.depth > starts[node] else None)
    return found


def _by_node(tree: Tree, usable: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
    """Nodes with scored tokens predicted before their `usable` depth: these pairs, and where."""
    node_of = np.searchsorted(tree.offsets, tree.at, side="right") - 1
    positions = tree.at - tree.offsets[node_of] + tree.starts[node_of]
    pairs = np.flatnonzero(positions < usable[node_of])
    pairs = pairs[np.argsort(node_of[pairs], kind="stable")]
    nodes, firsts = np.unique(node_of[pairs], return_index=True)
    for node, part in zip(nodes.tolist(), np.split(pairs, firsts[1:]), strict=False):
        yield node, part, positions[part]


def _limit_to_hidden(tree: Tree, found: list[Path | None], usable: Int64s) -> None:
    """Cut each node's `usable` depth before the first scored position that has no hidden state."""
    for node, _, positions in _by_node(tree, usable):
        path = found[node]
        assert path is not None, "this is a bug: tokens are used that were not found"
        start = int(tree.starts[node])
        missing = positions[path.hidden_from(start)[positions - start, 0] < 0]
        if len(missing):
            usable[node] = missing.min()


def _settle(tree: Tree, usable: Int64s, least: int) -> None:
    """Nothing is used below a node that is not used to its end, nor texts' beginnings too short."""
    whole = (usable >= tree.stops).tolist()
    depths = usable.tolist()
    for node, (parent, start) in enumerate(
        zip(tree.parents.tolist(), tree.starts.tolist(), strict=True)
    ):
        if parent >= 0 and not whole[parent]:
            depths[node] = 0
        if parent < 0 and depths[node] < least and not whole[node]:
            depths[node] = 0
        if depths[node] <= start:
            depths[node], whole[node] = 0, False
    usable[:] = depths


def _without(
    tree: Tree,
    rows: Sequence[Row],
    owners: tuple[int, ...],
    found: list[Path | None],
    usable: Int64s,
) -> Remainder:
    starts = np.maximum(tree.starts, usable)
    stops = tree.stops
    node_of_token = np.repeat(np.arange(len(starts)), tree.lengths)
    depth = np.arange(len(tree.tokens)) - tree.offsets[node_of_token] + tree.starts[node_of_token]
    left = depth >= starts[node_of_token]
    new_token = np.where(left, np.cumsum(left) - 1, -1)
    stays = stops > starts
    kept_nodes = np.flatnonzero(stays)
    new_node = np.where(stays, np.cumsum(stays) - 1, -1)
    parents = np.where(tree.parents >= 0, new_node[tree.parents], -1)[kept_nodes]
    known: list[Known] = []
    for node, pairs, positions in _by_node(tree, usable):
        path = found[node]
        assert path is not None, "this is a bug: tokens are used that were not found"
        known.append(Known(path, int(tree.starts[node]), pairs, positions))

    paths: list[Path | None] = []
    for node, parent in zip(kept_nodes.tolist(), parents.tolist(), strict=True):
        start, above = int(starts[node]), int(tree.parents[node])
        path = None
        if parent < 0 and start:
            path = found[node] if usable[node] else found[above]
            assert path is not None, "this is a bug: a node continues what is not kept"
            path = path.cut(start)
        paths.append(path)
    node = tree.leaves
    cached = np.zeros(len(rows), np.int64)
    while (node >= 0).any():
        # The deepest node on a row's way that is used counts.
        cached = np.where((node >= 0) & (cached == 0), usable[node], cached)
        node = np.where(node >= 0, tree.parents[node], -1)
    return Remainder(
        tree=replace(
            tree,
            tokens=tree.tokens[left],
            offsets=np.append(0, np.cumsum((stops - starts)[kept_nodes])),
            starts=starts[kept_nodes],
            parents=parents,
            leaves=new_node[tree.leaves],
            at=new_token[tree.at],
        ),
        paths=tuple(paths),
        owners=tuple(owners[node] for node in kept_nodes.tolist()),
        cached=tuple(cached.tolist()),
        known=tuple(known),
    )
