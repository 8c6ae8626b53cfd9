"""What is left of a window: with what is kept, each row's text is whole, and nothing is done twice."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxscore_server.prefix_index import PrefixIndex
from mlxscore_server.remainder import Remainder, remainder
from mlxscore_server.row import Row
from mlxscore_server.tree import grow


@st.composite
def a_row(draw: st.DrawFn) -> Row:
    ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=25))
    start = draw(st.integers(1, len(ids) - 1))
    salt = draw(st.sampled_from([b"", b"", b"", b"tenant"]))
    return Row(np.array(ids, np.int32), start, salt=salt)


windows = st.lists(st.lists(a_row(), min_size=1, max_size=12), min_size=1, max_size=4)


def check(left: Remainder, rows: list[Row]) -> None:
    tree = left.tree
    known = {}
    for part in left.known:
        for pair, position, place in zip(
            part.pairs.tolist(), part.positions.tolist(), part.places(), strict=True
        ):
            assert place.tolist() == list(part.path.hidden(position) or ())
            known[pair] = (part.path, position)
    assert sorted(known) == np.flatnonzero(tree.at < 0).tolist()
    for i, row in enumerate(rows):
        # From the leaf up: the nodes, and what the topmost of them continues.
        nodes: list[int] = []
        node = int(tree.leaves[i])
        while node >= 0:
            nodes.append(node)
            node = int(tree.parents[node])
        nodes.reverse()
        spelled: list[int] = []
        if nodes:
            path = left.paths[nodes[0]]
            assert (path.depth if path else 0) == tree.starts[nodes[0]] == left.cached[i]
            assert all(left.paths[node] is None for node in nodes[1:])
        else:
            assert left.cached[i] == row.num_inputs
        spelled += row.inputs[: left.cached[i]].tolist()
        places: list[int] = [-1] * len(spelled)
        for node in nodes:
            assert tree.starts[node] == len(spelled)
            low, high = int(tree.offsets[node]), int(tree.offsets[node + 1])
            spelled += tree.tokens[low:high].tolist()
            places += range(low, high)
        assert spelled == row.inputs.tolist()
        end = int(tree.ends[i])
        for pair, position in zip(
            range(end - row.num_targets, end), range(row.start - 1, row.num_inputs), strict=True
        ):
            assert tree.at[pair] == places[position]
            if tree.at[pair] < 0:
                assert known[pair][1] == position
                assert rows_agree(known[pair][0].entry, row, position)


def rows_agree(entry: object, row: Row, position: int) -> bool:
    """The kept tokens up to a position are the row's own, and of its salt."""
    tokens: list[int] = []
    while entry.parent is not None:  # type: ignore[attr-defined]
        tokens = entry.tokens.tolist() + tokens  # type: ignore[attr-defined]
        entry = entry.parent  # type: ignore[attr-defined]
    upto = position + 1
    return entry.salt == row.salt and tokens[:upto] == row.inputs[:upto].tolist()  # type: ignore[attr-defined]


def run(left: Remainder, rows: list[Row], index: PrefixIndex, slab: int) -> None:
    """Keep what a window computes: all of its nodes, hidden states where something is scored."""
    tree = left.tree
    paths = {}
    wanted = set(tree.at.tolist())
    for node, (start, parent) in enumerate(
        zip(tree.starts.tolist(), tree.parents.tolist(), strict=True)
    ):
        low, high = int(tree.offsets[node]), int(tree.offsets[node + 1])
        above = paths[parent] if parent >= 0 else left.paths[node]
        if above is None:
            above = index.root(rows[left.owners[node]].salt)
        places = [t for t in range(low, high) if t in wanted or t == high - 1]
        paths[node] = index.add(
            above,
            tree.tokens[low:high],
            slab,
            low,
            np.array(places, np.int64) - low + start,
            np.array(places, np.int64),
        )


@settings(deadline=None, max_examples=50)
@given(windows=windows, node_cost=st.integers(1, 6), longest=st.integers(1, 30))
def test_kept_and_left_make_the_rows(
    windows: list[list[Row]], node_cost: int, longest: int
) -> None:
    index = PrefixIndex()
    for slab, rows in enumerate([*windows, windows[-1]]):
        tree = grow(rows, node_cost=node_cost, longest=longest)
        left = remainder(tree, rows, index, node_cost)
        check(left, rows)
        for node, owner in enumerate(left.owners):
            assert node in path_of(left, owner)
        run(left, rows, index, slab)
    # The last window came twice: nothing of it is left, but for beginnings too short to fetch.
    if node_cost == 1:
        assert len(left.tree.tokens) == 0


def path_of(left: Remainder, row: int) -> list[int]:
    nodes: list[int] = []
    node = int(left.tree.leaves[row])
    while node >= 0:
        nodes.append(node)
        node = int(left.tree.parents[node])
    return nodes
