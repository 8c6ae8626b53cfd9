"""Kept keys and values: every row's values name the prefix whose last token it belongs to, so rows
prove themselves wherever they were moved, joined or cut."""

import zlib
from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx, to_numpy, view_numpy
from mlxscore_server.kept import Kept, KeptRows
from mlxscore_server.prefix_path import Path
from mlxscore_server.slab import Joined, Slab, take_rows

Text = tuple[int, ...]
# (kv heads, head dim, dtype) of each layer's keys; rows of 16, 6 and 24 bytes: the second is no
# multiple of a word. Values are one wider.
LAYERS = [(2, 2, mx.float32), (1, 3, mx.float16), (3, 4, mx.bfloat16)]
DIM = 5
NUM_KINDS = 2 * len(LAYERS) + 1


@cache
def _row(salt: bytes, prefix: Text, kind: int, size: int) -> NDArray[np.float32]:
    rng = np.random.default_rng([kind, zlib.crc32(salt), *prefix])
    return rng.integers(0, 256, size).astype(np.float32)


def named(
    salt: bytes, prefixes: Sequence[Text], kind: int, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """(n, *shape): whole numbers up to 255, which every dtype holds, drawn from each prefix's name."""
    rows = [_row(salt, prefix, kind, int(np.prod(shape))) for prefix in prefixes]
    return np.array(rows, np.float32).reshape(len(prefixes), *shape)


def arrays(
    salt: bytes, prefixes: Sequence[Text], hidden: Sequence[Text] | None
) -> tuple[list[mx.array], list[mx.array], mx.array | None]:
    """What a micro-batch of these rows leaves behind; lazy."""
    keys, values = (
        [
            to_mlx(named(salt, prefixes, 2 * i + more, (heads, dim + more))).astype(dtype)
            for i, (heads, dim, dtype) in enumerate(LAYERS)
        ]
        for more in (0, 1)
    )
    states = None if hidden is None else to_mlx(named(salt, hidden, NUM_KINDS, (DIM,)))
    return keys, values, states


ROW_BYTES = sum(
    heads * (dim + more) * dtype.size for heads, dim, dtype in LAYERS for more in (0, 1)
)
HIDDEN_BYTES = 4 * DIM


def float32(array: mx.array) -> NDArray[np.float32]:
    return to_numpy(array.astype(mx.float32))


def prefixes_of(text: Text, start: int = 0) -> list[Text]:
    return [text[:n] for n in range(start + 1, len(text) + 1)]


def keep(kept: Kept, salt: bytes, text: Text, hidden: Sequence[int] = (), cut: int = 10**9) -> Path:
    """Go on from what is kept of a text, at most to `cut`, and keep the rest, as a scorer would."""
    tokens = np.array(text, np.int32)
    known = kept.walk(kept.root(salt), tokens)
    known = known.cut(min(known.depth, cut, len(text) - 1))
    own = prefixes_of(text, known.depth)
    at = np.array([p for p in hidden if p >= known.depth], np.int64)
    # Two rows in front belong to something else, which is not kept.
    slab = kept.put(
        *arrays(
            salt, [(9,), (9, 9), *own], [text[: p + 1] for p in at.tolist()] if len(at) else None
        )
    )
    return kept.add(known, tokens[known.depth :], slab, 2, at, np.arange(len(at)))


def check(kept: Kept, paths: Sequence[tuple[Path, bytes, Text]]) -> KeptRows:
    """All rows of all paths are the right ones, in every layer."""
    rows = kept.rows([path for path, _, _ in paths])
    for layer, (keys, values) in enumerate(rows.layers):
        for more, array in enumerate((keys, values)):
            heads, dim, dtype = LAYERS[layer]
            assert array.shape == (rows.num_rows, heads, dim + more)
            assert array.dtype == dtype
            got = float32(array)
            for index, (_, salt, text) in zip(rows.indices, paths, strict=True):
                wanted = named(salt, prefixes_of(text), 2 * layer + more, (heads, dim + more))
                assert (got[index] == wanted).all()
    assert all(index.dtype == np.int32 for index in rows.indices)
    return rows


def check_hidden(kept: Kept, path: Path, salt: bytes, text: Text) -> int:
    """How many of a path's hidden states are kept; those are the right ones."""
    positions = [p for p in range(path.depth) if path.hidden(p) is not None]
    if positions:
        order = positions[::-1] + positions
        got = kept.hidden([path.hidden(p) or (-1, -1) for p in order])
        wanted = named(salt, [text[: p + 1] for p in order], NUM_KINDS, (DIM,))
        assert (float32(got) == wanted).all()
    return len(positions)


texts = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)
operation = st.tuples(
    st.sampled_from(["keep", "keep", "keep", "pin", "unpin", "touch", "shrink"]),
    st.sampled_from([b"", b"tenant"]),
    texts,
    st.lists(st.integers(0, 9), max_size=4).map(sorted),
    st.integers(0, 10),
)


@settings(max_examples=40, deadline=None)
@given(
    operations=st.lists(operation, max_size=25),
    max_rows=st.sampled_from([0, 5, 20, 10_000]),
)
def test_rows_prove_themselves_after_anything(
    operations: list[tuple[str, bytes, Text, list[int], int]], max_rows: int
) -> None:
    kept = Kept(max_rows * ROW_BYTES)
    seen: set[tuple[bytes, Text]] = set()
    pinned: list[tuple[Path, bytes, Text]] = []
    for what, salt, text, hidden, n in operations:
        path = kept.walk(kept.root(salt), np.array(text, np.int32))
        if what == "keep":
            at = sorted({p for p in hidden if p < len(text)})
            keep(kept, salt, text, at, cut=n)
            seen.add((salt, text))
        elif what == "pin":
            kept.pin(path)
            pinned.append((path, salt, text[: path.depth]))
        elif what == "unpin" and pinned:
            kept.unpin(pinned.pop(n % len(pinned))[0])
        elif what == "touch":
            kept.touch(path)
        elif what == "shrink":
            kept.shrink()
            assert kept.live_bytes <= kept.bytes
            if not pinned:
                assert kept.bytes <= kept.max_bytes
            elif kept.bytes > kept.max_bytes:
                # All that could go is gone, and what is dead weighs no more than a third.
                assert kept.drop_oldest() is None
                assert kept.bytes <= kept.live_bytes * 4 / 3 + 1
        live = [
            (path, salt, text[: path.depth])
            for salt, text in sorted(seen)
            if (path := kept.walk(kept.root(salt), np.array(text, np.int32))).depth
        ]
        check(kept, live + pinned)
        for path, salt, text in live:
            check_hidden(kept, path, salt, text)
        if max_rows == 10_000:
            assert [path.depth for path, _, _ in live] == [len(text) for _, text in sorted(seen)]
        held = sum(use.rows for use in kept.slabs.values())
        states = sum(use.hidden for use in kept.slabs.values())
        assert kept.live_bytes == held * ROW_BYTES + states * HIDDEN_BYTES
    kept.clear()
    assert (kept.bytes, kept.live_bytes, kept.num_slabs, kept.num_entries) == (0, 0, 0, 0)


def test_shared_rows_are_there_once_and_a_single_range_is_not_copied() -> None:
    kept = Kept(10**6)
    preamble = (1, 2, 3, 4, 5, 6)
    first = keep(kept, b"", preamble)
    branches = [(*preamble[:4], token) for token in (7, 8, 9)]
    paths = [(keep(kept, b"", text), b"", text) for text in branches]
    rows = check(kept, [(first, b"", preamble), *paths])
    assert rows.num_rows == len(preamble) + len(branches)
    assert [index.tolist() for index in rows.indices[:2]] == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 6],
    ]
    short = check(kept, [(first.cut(3), b"", preamble[:3])])
    assert short.num_rows == 3


def test_paths_of_no_tokens_have_no_layers() -> None:
    kept = Kept(10**6)
    rows = kept.rows([kept.root(b""), kept.root(b"x")])
    assert (rows.num_rows, rows.layers) == (0, [])
    assert [index.shape for index in rows.indices] == [(0,), (0,)]
    text = (1, 2)
    both = kept.rows([kept.root(b""), keep(kept, b"", text)])
    assert [index.tolist() for index in both.indices] == [[], [0, 1]]


def test_equal_tokens_of_two_salts_have_rows_of_their_own() -> None:
    kept = Kept(10**6)
    text = (1, 2, 3)
    paths = [(keep(kept, salt, text), salt, text) for salt in (b"a", b"b")]
    assert check(kept, paths).num_rows == 6
    assert kept.walk(kept.root(b"c"), np.array(text, np.int32)).depth == 0


def test_hidden_states_that_were_lacking_come_from_the_later_slab() -> None:
    kept = Kept(10**6)
    text = (1, 2, 3, 4)
    keep(kept, b"", text, [1])
    before = kept.live_bytes
    path = keep(kept, b"", text, [1, 2, 3], cut=1)
    assert kept.live_bytes == before + 2 * HIDDEN_BYTES
    assert check_hidden(kept, path, b"", text) == 3
    check(kept, [(path, b"", text)])


def test_without_a_budget_everything_unpinned_goes_at_once() -> None:
    kept = Kept(0)
    text, other = (1, 2, 3), (4, 5)
    path = keep(kept, b"", text, [2])
    kept.pin(path)
    keep(kept, b"", other)
    kept.shrink()
    check(kept, [(path, b"", text)])
    assert check_hidden(kept, path, b"", text) == 1
    # The two rows that nobody kept are gone, too.
    assert kept.bytes == 3 * ROW_BYTES + HIDDEN_BYTES
    assert kept.walk(kept.root(b""), np.array(other, np.int32)).depth == 0
    kept.unpin(path)
    kept.shrink()
    assert (kept.bytes, kept.num_slabs, kept.num_entries) == (0, 0, 0)


def test_the_least_recently_used_goes_first() -> None:
    kept = Kept(6 * ROW_BYTES + 3 * HIDDEN_BYTES)
    texts = [(token, token) for token in (1, 2, 3, 4)]
    for text in texts[:3]:
        kept.touch(keep(kept, b"", text, [1]))
    kept.shrink()  # six live rows in slabs of four rows each
    assert [kept.walk(kept.root(b""), np.array(t, np.int32)).depth for t in texts] == [2, 2, 2, 0]
    assert kept.bytes == kept.max_bytes
    kept.touch(kept.walk(kept.root(b""), np.array(texts[0], np.int32)))
    keep(kept, b"", texts[3], [1])
    kept.shrink()
    assert [kept.walk(kept.root(b""), np.array(t, np.int32)).depth for t in texts] == [2, 0, 2, 2]


HEADS, HEAD_DIM = 4, 64


def names_of(text: NDArray[np.int32], start: int = 0) -> list[int]:
    """A number, which float32 holds, for each prefix of more than `start` tokens."""
    return [zlib.crc32(text[:n].tobytes()) >> 8 for n in range(start + 1, len(text) + 1)]


def keep_random_batch(kept: Kept, rng: np.random.Generator) -> list[Path]:
    """A micro-batch of several short texts, which share what chance lets them share."""
    names: list[int] = []
    texts: list[tuple[Path, NDArray[np.int32], int]] = []
    for _ in range(int(rng.integers(1, 25))):
        text = rng.integers(0, 6, int(rng.integers(1, 12))).astype(np.int32)
        known = kept.walk(kept.root(b""), text)
        known = known.cut(min(known.depth, len(text) - 1))
        texts.append((known, text, len(names)))
        names += names_of(text, known.depth)
    rows = to_mlx(np.array(names, np.float32)[:, None, None])
    # The values lie in the middle of a larger buffer, as those of fused projections do.
    fused = rows * mx.ones((1, HEADS, 5 * HEAD_DIM))
    slab = kept.put(
        [rows * mx.ones((1, HEADS, HEAD_DIM))],
        [fused[:, :, HEAD_DIM : 2 * HEAD_DIM]],
        mx.ones((len(names), HEAD_DIM)),
    )
    paths: list[Path] = []
    for known, text, row in texts:
        at = np.array([len(text) - 1])
        rest = text[known.depth :]
        paths.append(kept.add(known, rest, slab, row, at, at - known.depth + row))
    return paths


def check_names(kept: Kept) -> None:
    """All rows of all entries are their own."""
    entries = {entry for use in kept.slabs.values() for entry in use.entries}
    paths = [Path(entry, entry.end) for entry in entries]
    rows = kept.rows(paths)
    assert rows.num_rows == kept.num_tokens
    keys, values = (view_numpy(array)[:, :, [0, -1]] for array in rows.layers[0])
    for path, index in zip(paths, rows.indices, strict=True):
        text = np.concatenate([entry.tokens for entry in path.entries()][::-1])
        wanted = np.array(names_of(text), np.float32)[:, None, None]
        assert (keys[index] == wanted).all()
        assert (values[index] == wanted).all()


def test_ten_thousand_texts_end_in_bounded_memory_and_few_slabs() -> None:
    rng = np.random.default_rng(0)
    kept = Kept(8 * 2**20)
    mx.synchronize()
    before = mx.get_active_memory()
    pinned: list[Path] = []
    most_bytes = most_slabs = num_texts = 0
    while num_texts < 10_000:
        for path in keep_random_batch(kept, rng):
            num_texts += 1
            kept.pin(path)
            pinned.append(path)
        while len(pinned) > 30:
            kept.unpin(pinned.pop(int(rng.integers(0, len(pinned)))))
        kept.shrink()
        most_bytes = max(most_bytes, kept.bytes)
        most_slabs = max(most_slabs, kept.num_slabs)
    assert kept.num_tokens > 2000, "the budget is filled"
    assert most_bytes <= kept.max_bytes
    assert most_slabs < 100
    mx.synchronize()
    held = mx.get_active_memory() - before
    # What is really held is what is counted, but for the allocator's rounding.
    assert held < kept.bytes * 1.1 + kept.num_slabs * 3 * 2**14
    check_names(kept)
    for path in pinned:
        kept.unpin(path)
    kept.clear()
    mx.synchronize()
    assert kept.bytes == 0
    assert mx.get_active_memory() - before < 2**16


span = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 10))


@settings(max_examples=100, deadline=None)
@given(spans=st.lists(span, min_size=1, max_size=40))
def test_joined_spans_hold_each_row_once_in_order(spans: list[tuple[int, int, int]]) -> None:
    joined = Joined(spans)
    wanted = {(slab, row + i) for slab, row, n in spans for i in range(n)}
    assert joined.num_rows == len(wanted)
    order = list(dict.fromkeys(slab for slab, _, _ in spans))
    rows = sorted(wanted, key=lambda place: (order.index(place[0]), place[1]))
    for one in spans:
        places: list[tuple[int, int]] = [rows[i] for i in joined.indices([one]).tolist()]
        assert places == [(one[0], one[1] + i) for i in range(one[2])]
    numbers = np.arange(50, dtype=np.float32)
    slabs = {
        slab: Slab([to_mlx(numbers + 100 * slab).reshape(50, 1, 1)], [], None) for slab in order
    }
    got = joined.rows(slabs, lambda slab: slab.keys[0])
    assert float32(got).ravel().tolist() == [100 * slab + row for slab, row in rows]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 2), mx.float32), ((3,), mx.float16), ((1, 4), mx.bfloat16), ((8,), mx.uint8)],
)
def test_a_gather_by_words_takes_the_same_rows(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    table = np.arange(20 * int(np.prod(shape))).reshape(20, *shape) % 256
    rows = np.array([3, 19, 0, 3, 7], np.int32)
    taken = take_rows(to_mlx(table.astype(np.float32)).astype(dtype), to_mlx(rows))
    assert taken.dtype == dtype
    assert (float32(taken) == table[rows]).all()
