"""The tree: every row spelled, every scored token found, and shared exactly what the rule says."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_server.row import Row
from mlxscore_server.tree import Tree, grow

Text = tuple[int, ...]
Node = tuple[bytes, Text, int]
"""Salt, all tokens up to the node's end, position of its first."""

# Ids whose bytes sort in another order than the numbers, and few, so that much is shared.
some_ids = st.lists(st.sampled_from([0, 1, 256, 65537]), min_size=1, max_size=8)


@st.composite
def a_row(draw: st.DrawFn, stems: Sequence[list[int]]) -> Row:
    ids = [*draw(st.sampled_from(stems)), *draw(some_ids)]
    next_token = draw(st.booleans()) or len(ids) == 1
    start = draw(st.integers(1, len(ids) - 1 + next_token))
    salt = draw(st.sampled_from([b"", b"", b"tenant"]))
    return Row(np.array(ids, np.int32), start, next_token=next_token, salt=salt)


@st.composite
def rows_of(draw: st.DrawFn) -> list[Row]:
    """Rows that begin with one of a few stems, which themselves may begin alike."""
    stems = draw(st.lists(st.lists(st.sampled_from([0, 256]), max_size=20), min_size=1, max_size=4))
    return draw(st.lists(a_row(stems), min_size=1, max_size=14))


costs = st.integers(1, 30)
longests = st.integers(1, 12) | st.just(1000)


def text(row: Row) -> Text:
    return tuple(row.inputs.tolist())


def row_of(*inputs: int, start: int | None = None, salt: bytes = b"") -> Row:
    """A row that reads `inputs` and scores one more token, or all from `start` on."""
    return Row(np.array([*inputs, 7], np.int32), start or len(inputs), salt=salt)


def path(tree: Tree, node: int) -> list[int]:
    """From the root to the node."""
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = int(tree.parents[node])
    return nodes[::-1]


def spelled(tree: Tree, node: int) -> Text:
    parts = [tree.tokens[tree.offsets[i] : tree.offsets[i + 1]] for i in path(tree, node)]
    return tuple(np.concatenate(parts).tolist())


def nodes_of(tree: Tree, rows: Sequence[Row]) -> list[Node]:
    """All nodes, sorted; one that rows of two salts use comes twice, one of no row fails."""
    used = {
        (node, row.salt)
        for row, leaf in zip(rows, tree.leaves.tolist(), strict=True)
        for node in path(tree, leaf)
    }
    assert {node for node, _ in used} == set(range(len(tree.starts)))
    return sorted((salt, spelled(tree, node), int(tree.starts[node])) for node, salt in used)


def common(texts: list[Text]) -> Text:
    """What all begin with: no more than the first and the last in order do."""
    low, high = min(texts), max(texts)
    depth = 0
    while depth < len(low) and low[depth] == high[depth]:
        depth += 1
    return low[:depth]


def expected(rows: Sequence[Row], node_cost: int, longest: int) -> list[Node]:
    """The same by the rule, one prefix at a time, on sets of tuples."""

    def cover(texts: list[Text], above: int) -> Iterator[tuple[Text, int]]:
        prefix = common(texts)
        depth = len(prefix)
        if len(texts) == 1:
            if depth > above:
                yield prefix, above
            return
        ways: dict[Text, list[Text]] = {}
        for each in texts:
            ways.setdefault(each[depth : depth + 1], []).append(each)
        if depth > above and (depth - above) * (len(ways) - 1) >= node_cost:
            yield prefix, above
            above = depth
        for way in ways.values():
            yield from cover(way, above)

    return sorted(
        (salt, segment[: begin + longest], begin)
        for salt in {row.salt for row in rows}
        for segment, start in cover(list({text(row) for row in rows if row.salt == salt}), 0)
        for begin in range(start, len(segment), longest)
    )


def check_shape(tree: Tree) -> None:
    """What holds of every tree, whatever its rows."""
    lengths = np.diff(tree.offsets)
    assert tree.offsets[0] == 0
    assert tree.offsets[-1] == len(tree.tokens)
    assert (lengths >= 1).all()
    assert len(tree.starts) == len(tree.parents) == len(lengths)
    for i, (start, parent) in enumerate(zip(tree.starts, tree.parents, strict=True)):
        assert -1 <= parent < i
        assert start == (0 if parent < 0 else tree.starts[parent] + lengths[parent])
        # Depth first: a node hangs on the one before it or on what that one hangs on.
        assert parent == -1 or parent in path(tree, i - 1)


def check_scored(tree: Tree, rows: Sequence[Row]) -> None:
    """Each scored token is predicted on its row's path, one position before its own."""
    assert tree.ends.tolist() == np.cumsum([row.num_targets for row in rows]).tolist()
    assert len(tree.at) == tree.ends[-1]
    node_of_token = np.repeat(np.arange(len(tree.starts)), np.diff(tree.offsets))
    parts = np.split(tree.at, tree.ends[:-1])
    for row, leaf, at in zip(rows, tree.leaves.tolist(), parts, strict=True):
        nodes = node_of_token[at]
        assert set(nodes.tolist()) <= set(path(tree, leaf))
        positions = tree.starts[nodes] + at - tree.offsets[nodes]
        wanted = range(row.start - 1, row.start - 1 + row.num_targets)
        assert positions.tolist() == list(wanted)


def check(tree: Tree, rows: Sequence[Row]) -> None:
    check_shape(tree)
    check_scored(tree, rows)
    for row, leaf in zip(rows, tree.leaves.tolist(), strict=True):
        assert spelled(tree, leaf) == text(row)


@given(rows=rows_of(), node_cost=costs, longest=longests, share=st.booleans())
def test_every_row_is_spelled_and_every_scored_token_found(
    rows: list[Row], node_cost: int, longest: int, share: bool
) -> None:
    tree = grow(rows, node_cost=node_cost, longest=longest, share=share)
    check(tree, rows)
    assert np.diff(tree.offsets).max() <= longest


@given(rows=rows_of(), node_cost=costs, longest=longests)
def test_shared_is_exactly_what_the_rule_says(
    rows: list[Row], node_cost: int, longest: int
) -> None:
    tree = grow(rows, node_cost=node_cost, longest=longest)
    assert nodes_of(tree, rows) == expected(rows, node_cost, longest)


@given(rows=rows_of(), longest=longests)
def test_at_a_cost_of_one_every_prefix_is_computed_once(rows: list[Row], longest: int) -> None:
    prefixes = {(row.salt, text(row)[: i + 1]) for row in rows for i in range(row.num_inputs)}
    assert len(grow(rows, node_cost=1, longest=longest).tokens) == len(prefixes)


@given(rows=rows_of(), longest=longests)
def test_without_sharing_only_equal_inputs_meet(rows: list[Row], longest: int) -> None:
    tree = grow(rows, node_cost=1, longest=longest, share=False)
    texts = {(row.salt, text(row)) for row in rows}
    assert len(tree.tokens) == sum(len(inputs) for _, inputs in texts)
    assert int((tree.parents < 0).sum()) == len(texts)
    assert len(set(tree.leaves.tolist())) == len(texts)


@given(rows=rows_of(), node_cost=costs, longest=longests, data=st.data())
def test_the_order_of_rows_changes_nothing(
    rows: list[Row], node_cost: int, longest: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    tree = grow(rows, node_cost=node_cost, longest=longest)
    other = grow([rows[i] for i in order], node_cost=node_cost, longest=longest)
    for name in ("tokens", "offsets", "starts", "parents"):
        assert getattr(tree, name).tolist() == getattr(other, name).tolist()
    assert tree.leaves[list(order)].tolist() == other.leaves.tolist()
    parts = np.split(tree.at, tree.ends[:-1])
    assert np.concatenate([parts[i] for i in order]).tolist() == other.at.tolist()


def random_rows(count: int, stem_lengths: Sequence[int], longest_end: int) -> list[Row]:
    """Rows that share nested stems and differ in their ends."""
    rng = np.random.default_rng(5)
    stems = [rng.integers(0, 3, n) for n in stem_lengths]
    rows: list[Row] = []
    for _ in range(count):
        depth = int(rng.integers(0, len(stems) + 1))
        end = rng.integers(0, 3, int(rng.integers(2, longest_end)))
        ids = np.concatenate([*stems[:depth], end]).astype(np.int32)
        rows.append(Row(ids, int(rng.integers(1, len(ids))), next_token=bool(rng.integers(2))))
    return rows


@pytest.mark.parametrize(
    ("count", "stem_lengths", "longest_end"),
    [(3000, [40, 90, 5], 30), (40, [700, 20_000], 30), (4, [30_000, 30_000], 9)],
)
def test_many_rows_and_long_ones(count: int, stem_lengths: list[int], longest_end: int) -> None:
    rows = random_rows(count, stem_lengths, longest_end)
    for node_cost, longest in ((1, 10**6), (16, 512)):
        tree = grow(rows, node_cost=node_cost, longest=longest)
        nodes = [(leaf, text(row)) for row, leaf in zip(rows, tree.leaves.tolist(), strict=True)]
        assert all(spelled(tree, leaf) == inputs for leaf, inputs in dict(nodes).items())
        assert len({leaf for leaf, _ in nodes}) == len({inputs for _, inputs in nodes})
        wanted = expected(rows, node_cost, longest)
        assert len(tree.starts) == len(wanted)
        assert len(tree.tokens) == sum(len(prefix) - start for _, prefix, start in wanted)
        check_scored(tree, rows)


def test_a_few_shot_question_by_hand() -> None:
    """A preamble, two questions, answers of one and two tokens: nodes in the order they run."""
    preamble, first, second = [1, 2, 3, 4], [10, 11], [20, 21, 22]
    rows = [
        row_of(*preamble, *second, 50, start=7),
        row_of(*preamble, *first, 30, start=6),
        row_of(*preamble, *first, 31, start=6),
        row_of(*preamble, *second, start=7),
        row_of(*preamble, *first, 40, 41, start=6),
        row_of(*preamble, *second, start=5),
    ]
    tree = grow(rows, node_cost=1, longest=100)
    assert tree.tokens.tolist() == [1, 2, 3, 4, 10, 11, 30, 31, 40, 41, 20, 21, 22, 50]
    assert tree.offsets.tolist() == [0, 4, 6, 7, 8, 10, 13, 14]
    assert tree.starts.tolist() == [0, 4, 6, 6, 6, 4, 7]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 1, 0, 5]
    # A row that others go on from ends in a node with children; so do two equal ones.
    assert tree.leaves.tolist() == [6, 2, 3, 5, 4, 5]
    assert [part.tolist() for part in np.split(tree.at, tree.ends[:-1])] == [
        [12, 13],
        [5, 6],
        [5, 7],
        [12],
        [5, 8, 9],
        [10, 11, 12],
    ]


def test_a_prefix_is_shared_where_that_saves_the_cost_of_a_node() -> None:
    """Three tokens in common, three ways on: six tokens saved."""
    rows = [row_of(1, 2, 3), row_of(1, 2, 3, 4), row_of(1, 2, 3, 5)]
    shared, apart = (grow(rows, node_cost=cost, longest=100) for cost in (6, 7))
    assert (len(shared.tokens), shared.leaves.tolist()) == (5, [0, 1, 2])
    assert (len(apart.tokens), apart.parents.tolist()) == (11, [-1, -1, -1])


def test_siblings_without_children_come_first_then_the_shorter() -> None:
    rows = [
        row_of(1, 5, 5, 5),
        row_of(1, 6, 6),
        row_of(1, 7, 1),
        row_of(1, 7, 2),
        row_of(1, 8, 8, 1),
        row_of(1, 8, 8, 2),
        row_of(9, 9),
    ]
    tree = grow(rows, node_cost=1, longest=100)
    ends = [spelled(tree, i) for i in range(len(tree.starts))]
    assert ends == [
        (9, 9),
        (1,),
        (1, 6, 6),
        (1, 5, 5, 5),
        (1, 7),
        (1, 7, 1),
        (1, 7, 2),
        (1, 8, 8),
        (1, 8, 8, 1),
        (1, 8, 8, 2),
    ]


def test_rows_that_share_nothing_stand_by_length() -> None:
    rows = [row_of(*[i] * n) for i, n in enumerate([30, 3, 29, 4, 30])]
    tree = grow(rows, node_cost=16, longest=100)
    assert np.diff(tree.offsets).tolist() == [3, 4, 29, 30, 30]


def test_a_long_segment_is_a_chain_of_full_pieces_and_a_rest() -> None:
    rows = [row_of(*range(10), 50, start=1), row_of(*range(10), 60)]
    tree = grow(rows, node_cost=1, longest=4)
    assert np.diff(tree.offsets).tolist() == [4, 4, 2, 1, 1]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2]
    assert tree.starts.tolist() == [0, 4, 8, 10, 10]
    assert sorted(tree.leaves.tolist()) == [3, 4]
    check(tree, rows)


def test_rows_of_different_salt_share_nothing_even_when_equal() -> None:
    salts = [b"", b"one", b"two", b"one"]
    tree = grow([row_of(1, 2, 3, salt=salt) for salt in salts], node_cost=1, longest=100)
    assert tree.parents.tolist() == [-1, -1, -1]
    assert tree.leaves[1] == tree.leaves[3]
    assert len(set(tree.leaves.tolist())) == 3
    assert tree.tokens.tolist() == [1, 2, 3] * 3


def test_no_rows() -> None:
    tree = grow([], node_cost=16, longest=100)
    assert (len(tree.tokens), len(tree.starts), len(tree.leaves), len(tree.at)) == (0, 0, 0, 0)
    assert tree.offsets.tolist() == [0]


def test_one_row_of_one_token() -> None:
    rows = [row_of(3)]
    tree = grow(rows, node_cost=16, longest=1)
    check(tree, rows)
    assert (tree.tokens.tolist(), tree.at.tolist()) == ([3], [0])


def test_hundreds_of_equal_rows_are_one_leaf() -> None:
    rows = [row_of(1, 2, 3, start=1 + i % 3) for i in range(500)]
    tree = grow(rows, node_cost=16, longest=100)
    check(tree, rows)
    assert tree.tokens.tolist() == [1, 2, 3]
    assert set(tree.leaves.tolist()) == {0}


def test_one_very_long_row() -> None:
    rows = [row_of(*range(200_000), start=1)]
    tree = grow(rows, node_cost=16, longest=4096)
    check(tree, rows)
    assert len(tree.starts) == 49
    assert tree.at.tolist() == list(range(200_000))


@pytest.mark.parametrize("node_cost", [1, 16, 10**9])
def test_a_staircase_of_prefixes(node_cost: int) -> None:
    """Each row the beginning of the next: every `node_cost` tokens a node that others hang on."""
    ids = np.random.default_rng(1).integers(0, 50_000, 2001).astype(np.int32)
    rows = [Row(ids[: i + 2], 1 if i % 100 == 0 else i + 1) for i in range(2000)]
    tree = grow(rows, node_cost=node_cost, longest=10**6)
    check_scored(tree, rows)
    own = np.diff(tree.offsets)[tree.leaves]
    assert own.tolist() == [1 + i % node_cost for i in range(2000)]
    assert len(tree.tokens) == own.sum()
