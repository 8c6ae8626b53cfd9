"""Attention blocks against a slow reference: who sees what, who is answered where, how many blocks."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlxscore_server.block_costs import BlockCosts
from mlxscore_server.blocks import Block, Blocks, cut

Ints = NDArray[np.int64]


@dataclass
class Forest:
    """Nodes of one micro-batch; `paths[i]` are all key rows before node i's own."""

    lengths: Ints
    starts: Ints
    parents: Ints
    kept_paths: list[NDArray[np.int32] | None]
    num_kept: int

    def cut(self, costs: BlockCosts) -> Blocks:
        return cut(
            self.lengths,
            self.starts,
            self.parents,
            self.kept_paths,
            costs,
            num_kept=self.num_kept,
        )

    def seen(self, window: int | None) -> list[set[int]]:
        """For each token the key rows that it sees: its path's and its own, up to itself."""
        offsets = np.cumsum(self.lengths) - self.lengths
        full: list[list[int]] = []
        seen: list[set[int]] = []
        for i, length in enumerate(self.lengths.tolist()):
            parent, kept = int(self.parents[i]), self.kept_paths[i]
            path = full[parent] if parent >= 0 else ([] if kept is None else kept.tolist())
            assert len(path) == self.starts[i]
            first = self.num_kept + int(offsets[i])
            full.append([*path, *range(first, first + length)])
            for t in range(length):
                here = full[i][: len(path) + t + 1]
                seen.append(set(here if window is None else here[-window:]))
        return seen


def visible(block: Block, window: int | None) -> NDArray[np.bool_]:
    """(B, Q, K), by the rule that Block states."""
    kp, qp = block.key_positions[:, None, :], block.query_positions[:, :, None]
    ks, qs = block.key_segments[:, None, :], block.query_segments[:, :, None]
    seen = ((ks == -1) | (ks == qs)) & (kp <= qp)
    return seen if window is None else seen & (kp > qp - window)


def check(forest: Forest, blocks: Blocks, costs: BlockCosts, window: int | None) -> None:
    num_tokens = int(forest.lengths.sum())
    wanted = forest.seen(window)
    asked: list[int] = []
    found: list[set[int]] = []
    for block in blocks.blocks:
        rows, num_queries = block.queries.shape
        num_keys = block.keys.shape[1]
        assert block.keys.shape[0] == rows
        for array in (block.query_segments, block.query_positions):
            assert array.shape == block.queries.shape
        for array in (block.key_segments, block.key_positions):
            assert array.shape == block.keys.shape
        for array in (block.queries, block.keys, block.query_segments, block.key_segments):
            assert array.dtype == np.int32
        assert 0 <= block.queries.min() <= block.queries.max() < num_tokens
        assert 0 <= block.keys.min() <= block.keys.max() < num_tokens + forest.num_kept
        assert rows == 1 or rows * num_keys <= costs.max_block_keys
        assert (block.lengths >= 1).all()
        assert (block.lengths <= num_queries).all()
        seen = visible(block, window)
        if block.prefix is not None:
            assert num_keys == block.prefix + num_queries
            assert num_queries % costs.query_multiple == 0
            triangle = np.arange(num_keys) <= block.prefix + np.arange(num_queries)[:, None]
            assert (visible(block, None) == triangle).all()
        else:
            assert num_queries % costs.masked_query_multiple == 0
            assert num_keys % costs.key_multiple == 0
        if block.whole:
            first = block.queries[0, 0]
            assert block.prefix == 0
            assert (block.queries.ravel() == np.arange(first, first + block.queries.size)).all()
            assert (block.keys == block.queries + forest.num_kept).all()
        for b in range(rows):
            for i in range(num_queries):
                keys = block.keys[b][seen[b, i]].tolist()
                assert keys, "a query that sees nothing is NaN in some kernels"
                asked.append(int(block.queries[b, i]))
                if i < block.lengths[b]:
                    assert len(set(keys)) == len(keys)
                found.append(set(keys))
    out = np.arange(num_tokens) if blocks.out is None else blocks.out
    assert len(out) == num_tokens
    for token, answer in enumerate(out.tolist()):
        assert asked[answer] == token
        assert found[answer] == wanted[token]
    if blocks.out is None:
        assert asked == list(range(num_tokens))


@st.composite
def forests(draw: Any) -> Forest:
    """Random forests, parents before children, some nodes going on from a random tree of kept rows."""
    num_kept = draw(st.integers(0, 12))
    above = [draw(st.integers(-1, row - 1)) for row in range(num_kept)]
    paths: list[list[int]] = []
    for row, parent in enumerate(above):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    order = draw(st.permutations(range(num_kept)))
    renamed = [np.array([order[row] for row in path], np.int32) for path in paths]
    lengths: list[int] = []
    starts: list[int] = []
    parents: list[int] = []
    kept: list[NDArray[np.int32] | None] = []
    for node in range(draw(st.integers(1, 14))):
        parent = draw(st.integers(-1, node - 1))
        path = None
        if parent < 0 and num_kept and draw(st.booleans()):
            path = draw(st.sampled_from(renamed))
        start = (
            starts[parent] + lengths[parent] if parent >= 0 else 0 if path is None else len(path)
        )
        lengths.append(draw(st.integers(1, 9)))
        starts.append(start)
        parents.append(parent)
        kept.append(path)
    return Forest(np.array(lengths), np.array(starts), np.array(parents), kept, num_kept)


costs = st.builds(
    BlockCosts,
    short=st.integers(1, 10),
    max_queries=st.integers(1, 20),
    query_multiple=st.sampled_from([1, 2, 4]),
    masked_query_multiple=st.sampled_from([1, 3, 4]),
    key_multiple=st.sampled_from([1, 4, 8]),
    max_block_keys=st.sampled_from([1, 20, 60, 10_000]),
    block=st.sampled_from([0.0, 30.0, 1000.0, 1e9]),
    mask_factor=st.sampled_from([0.1, 1.0, 3.0, 100.0]),
    query_row=st.sampled_from([0.0, 10.0]),
    key_row=st.sampled_from([0.0, 10.0]),
)


@settings(max_examples=150, deadline=None)
@given(forests(), costs, st.sampled_from([None, 1, 3, 8]))
def test_every_token_sees_its_path_and_is_answered_once(
    forest: Forest, costs: BlockCosts, window: int | None
) -> None:
    check(forest, forest.cut(costs), costs, window)


# A mask and a further block cost nearly everything, or nearly nothing.
PLAIN = BlockCosts(
    short=1,
    max_queries=100,
    query_multiple=1,
    masked_query_multiple=1,
    key_multiple=1,
    max_block_keys=10_000,
    block=0,
    mask_factor=1000,
    query_row=0,
    key_row=0,
)
FEW = replace(PLAIN, block=1e6)


def forest(*nodes: tuple[int, int], kept: dict[int, list[int]] | None = None) -> Forest:
    """Of (parent, length); `kept` are rows before nodes without a parent."""
    paths = [None if kept is None else kept.get(node) for node in range(len(nodes))]
    starts: list[int] = []
    for (parent, _), path in zip(nodes, paths, strict=True):
        starts.append(starts[parent] + nodes[parent][1] if parent >= 0 else len(path or []))
    num_kept = 1 + max((max(path) for path in paths if path), default=-1)
    return Forest(
        np.array([length for _, length in nodes]),
        np.array(starts),
        np.array([parent for parent, _ in nodes]),
        [None if path is None else np.array(path, np.int32) for path in paths],
        num_kept,
    )


def shapes(forest: Forest, costs: BlockCosts) -> list[tuple[int, int, int, int | None]]:
    """(rows, queries, keys, prefix) of each block."""
    blocks = forest.cut(costs)
    check(forest, blocks, costs, None)
    return [(*b.queries.shape, b.keys.shape[1], b.prefix) for b in blocks.blocks]


def test_nothing_makes_no_blocks() -> None:
    assert forest().cut(PLAIN).blocks == []


def test_equal_rows_need_no_gather() -> None:
    equal = forest((-1, 6), (-1, 6), (-1, 6))
    blocks = equal.cut(replace(PLAIN, query_multiple=2))
    assert blocks.out is None
    assert [(b.queries.shape, b.prefix, b.whole) for b in blocks.blocks] == [((3, 6), 0, True)]
    rounded = equal.cut(replace(PLAIN, query_multiple=4))
    assert [(b.queries.shape, b.whole) for b in rounded.blocks] == [((3, 8), False)]
    assert rounded.out is not None


def test_one_row_that_is_shorter_does_not_cost_the_others_their_reshape() -> None:
    almost = forest((-1, 63), *[(-1, 64)] * 15)
    blocks = almost.cut(BlockCosts.cuda()).blocks
    assert [b.whole for b in blocks] == [False]  # so small that one more block costs more
    costs = replace(BlockCosts.cuda(), block=1e5)
    assert [(len(b.queries), b.whole) for b in almost.cut(costs).blocks] == [(1, False), (15, True)]


def test_nodes_of_one_shape_share_a_block_and_others_have_their_own() -> None:
    tree = forest((-1, 10), (0, 4), (0, 7), (0, 4))
    assert shapes(tree, PLAIN) == [(1, 10, 10, 0), (2, 4, 14, 10), (1, 7, 17, 10)]


def test_prefixes_of_unlike_length_share_a_causal_block_by_asking_again() -> None:
    """Rows (8 + 4), (8 + 5), (6 + 4) and (6 + 5) from position 0 on: the prompts are rows no more."""
    prompts = forest((-1, 8), (0, 4), (0, 5), (-1, 6), (3, 4), (3, 5))
    assert shapes(prompts, FEW) == [(4, 13, 13, 0)]


def test_kept_tokens_have_no_queries_and_any_will_do_instead() -> None:
    """The first two go on from 3 and 2 kept rows: one of them asks for a kept position too."""
    warm = forest((-1, 4), (-1, 4), (0, 4), kept={0: [2, 0, 1], 1: [3, 4]})
    assert shapes(warm, replace(FEW, mask_factor=1e6)) == [(2, 9, 11, 2)]
    assert shapes(warm, replace(FEW, mask_factor=1e-6)) == [(2, 8, 11, None)]


def test_causal_queries_begin_at_a_multiple_so_that_few_shapes_occur() -> None:
    warm = forest((-1, 20), kept={0: list(range(10))})
    assert shapes(warm, replace(PLAIN, query_multiple=8)) == [(1, 24, 32, 8)]


def test_short_siblings_share_a_row_and_their_parents_queries_join_them() -> None:
    answers = forest((-1, 20), (0, 2), (0, 1), (0, 3), (0, 9))
    apart = replace(PLAIN, short=4, mask_factor=3)
    assert shapes(answers, apart) == [(1, 20, 20, 0), (1, 6, 26, None), (1, 9, 29, 20)]
    together = replace(apart, block=1e5)
    assert len(shapes(answers, together)) == 1


def test_siblings_on_a_kept_path_are_siblings() -> None:
    path = [3, 1, 0, 2]
    answers = forest((-1, 2), (-1, 1), (-1, 2), kept={0: path, 1: path, 2: path[:3]})
    assert shapes(answers, replace(PLAIN, short=4)) == [(1, 3, 7, None), (1, 2, 5, 3)]


def test_many_siblings_are_spread_evenly() -> None:
    answers = forest((-1, 5), *[(0, 3)] * 10)
    costs = replace(PLAIN, short=4, max_queries=12, mask_factor=1)
    rows = [(b[0], b[1]) for b in shapes(answers, costs) if b[3] is None]
    assert sum(count for count, _ in rows) == 3
    assert {size for _, size in rows} <= {9, 12}


def test_gathered_keys_are_bounded() -> None:
    rows = forest(*[(-1, 10)] * 7)
    assert shapes(rows, replace(PLAIN, max_block_keys=25)) == [
        (2, 10, 10, 0),
        (2, 10, 10, 0),
        (2, 10, 10, 0),
        (1, 10, 10, 0),
    ]


def test_preference_pairs_make_few_blocks() -> None:
    """16 prompts of 200-400 with two continuations of 100-300 each: no two shapes are equal."""
    rng = np.random.default_rng(0)
    nodes: list[tuple[int, int]] = []
    for _ in range(16):
        prompt = len(nodes)
        nodes.append((-1, int(rng.integers(200, 400))))
        nodes += [(prompt, int(rng.integers(100, 300))) for _ in range(2)]
    pairs = forest(*nodes)
    costs = BlockCosts.cuda()
    alone = pairs.cut(replace(costs, block=0, query_multiple=1)).blocks
    blocks = pairs.cut(costs).blocks
    assert len(blocks) <= 4 < len(alone)
    assert all(block.prefix is not None for block in blocks)


def test_few_shot_questions_and_answers_are_two_blocks() -> None:
    """The preamble, and each question with its answers in one row: its keys are gathered once."""
    rng = np.random.default_rng(0)
    nodes = [(-1, 1500)]
    for _ in range(32):
        question = len(nodes)
        nodes.append((0, int(rng.integers(30, 60))))
        nodes += [(question, int(rng.integers(1, 7))) for _ in range(4)]
    (preamble, questions) = forest(*nodes).cut(BlockCosts.cuda()).blocks
    assert preamble.queries.shape == (1, 1536)
    assert questions.prefix is None
    assert questions.queries.shape[0] in (32, 33)
    assert questions.queries.shape[1] <= 96
