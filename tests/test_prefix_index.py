"""The index of kept prefixes, against a plain set of all prefixes: what is found, where it lies, what
goes first. Each row of a slab is stood for by the prefix whose last token it belongs to."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from mlxscore_server.prefix_index import PrefixIndex
from mlxscore_server.prefix_path import Entry, Path

Prefix = tuple[bytes, tuple[int, ...]]
"""A salt and all tokens so far."""

salts = st.sampled_from([b"", b"tenant"])
texts = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


def ids(tokens: tuple[int, ...] | list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def positions(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def text_of(entry: Entry) -> Prefix:
    """The salt and all tokens up to an entry's end."""
    tokens: list[int] = []
    for part in [entry, *list(entry.chain())[1:]]:
        tokens = part.tokens.tolist() + tokens
    return entry.root.salt, tuple(tokens)


def prefixes(text: Prefix, start: int = 0) -> list[Prefix]:
    """Those of more than `start` tokens."""
    salt, tokens = text
    return [(salt, tokens[:n]) for n in range(start + 1, len(tokens) + 1)]


class Index(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.rows: dict[int, list[Prefix | None]] = {}
        self.hidden_rows: dict[int, list[Prefix]] = {}
        self.used: dict[Prefix, int] = {}
        """Kept prefixes and when each was used last."""
        self.hidden: set[Prefix] = set()
        self.pinned: list[tuple[Path, Prefix]] = []
        self.now = 0

    def longest(self, text: Prefix) -> int:
        return max((len(p[1]) for p in prefixes(text) if p in self.used), default=0)

    def use(self, path: Path) -> None:
        """An entry is used as a whole, though a path may end within it."""
        self.now += 1
        if path.depth:
            for prefix in prefixes(text_of(path.entry)):
                self.used[prefix] = self.now

    @rule(salt=salts, text=texts, data=st.data())
    def add(self, salt: bytes, text: tuple[int, ...], data: st.DataObject) -> None:
        known = self.index.walk(self.index.root(salt), ids(text))
        depth = data.draw(st.integers(0, min(known.depth, len(text) - 1)))
        with_hidden = sorted(data.draw(st.sets(st.integers(depth, len(text) - 1))))
        slab, before = len(self.rows), data.draw(st.integers(0, 2))
        self.rows[slab] = [None] * before + prefixes((salt, text), depth)
        self.hidden_rows[slab] = [(salt, text[: p + 1]) for p in with_hidden]
        path = self.index.add(
            known.cut(depth),
            ids(text[depth:]),
            slab,
            before,
            positions(with_hidden),
            np.arange(len(with_hidden)),
        )
        assert path.depth == len(text)
        self.used.update(dict.fromkeys(prefixes((salt, text)), 0))
        self.hidden.update(self.hidden_rows[slab])
        self.use(path)

    @rule(salt=salts, text=texts)
    def touch(self, salt: bytes, text: tuple[int, ...]) -> None:
        path = self.index.walk(self.index.root(salt), ids(text))
        self.index.touch(path)
        self.use(path)

    @rule(salt=salts, text=texts)
    def pin(self, salt: bytes, text: tuple[int, ...]) -> None:
        path = self.index.walk(self.index.root(salt), ids(text))
        self.index.pin(path)
        self.pinned.append((path, (salt, text[: path.depth])))

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        path, _ = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        self.index.unpin(path)
        self.use(path)

    @rule()
    def drop(self) -> None:
        leaves = [
            self.index.walk(self.index.root(p[0]), ids(p[1])).entry
            for p in self.used
            if not any((p[0], (*p[1], token)) in self.used for token in range(3))
        ]
        pinned = {p for _, text in self.pinned for p in prefixes(text)}
        # A pin holds the entry that it was set on to its end.
        pinned |= {p for path, _ in self.pinned for p in prefixes(text_of(path.entry))}
        times = {
            entry: max(self.used[p] for p in prefixes(text_of(entry), entry.start))
            for entry in leaves
            if text_of(entry) not in pinned
        }
        dropped = self.index.drop_oldest()
        if dropped is None:
            assert not times
            return
        assert times[dropped] == min(times.values())
        gone = prefixes((dropped.root.salt, _tokens(dropped)), dropped.start)
        assert not pinned.intersection(gone)
        for prefix in gone:
            del self.used[prefix]
            self.hidden.discard(prefix)
        with pytest.raises(ValueError, match="dropped"):
            Path(dropped, dropped.end).spans()

    @rule(salt=salts, text=texts)
    def forget(self, salt: bytes, text: tuple[int, ...]) -> None:
        if self.now % 4:  # seldom: else little grows
            return
        path = self.index.walk(self.index.root(salt), ids(text))
        pinned = {p for path, _ in self.pinned for p in prefixes(text_of(path.entry))}
        starts = [entry.start for entry in path.entries() if text_of(entry) not in pinned]
        self.index.forget(path)
        if starts:
            first = text[: min(starts) + 1]
            gone = {p for p in self.used if p[0] == salt and p[1][: len(first)] == first}
            assert gone and not pinned.intersection(gone)
            for prefix in gone:
                del self.used[prefix]
            self.hidden -= gone
            assert self.index.walk(self.index.root(salt), ids(text)).depth == min(starts)

    @precondition(lambda self: self.index.slabs)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        slabs = data.draw(
            st.lists(st.sampled_from(sorted(self.index.slabs)), min_size=1, unique=True)
        )
        to = len(self.rows)
        spans, places = self.index.slabs.move(slabs, to)
        self.rows[to] = [p for slab, row, n in spans for p in self.rows[slab][row : row + n]]
        self.hidden_rows[to] = [self.hidden_rows[slab][row] for slab, row in places.tolist()]
        assert not set(slabs).intersection(self.index.slabs)
        assert {slab for slab, _, _ in spans} | set(places[:, 0].tolist()) <= set(slabs)
        assert len({(s, r + i) for s, r, n in spans for i in range(n)}) == len(self.rows[to])
        use = self.index.slabs[to]
        assert (use.rows, use.hidden) == (len(self.rows[to]), len(places))

    @rule()
    def clear(self) -> None:
        if self.now % 4:  # seldom: else little grows
            return
        paths = [path for path, _ in self.pinned]
        self.index.clear()
        for path in paths:
            self.index.unpin(path)
        self.pinned.clear()
        self.used.clear()
        self.hidden.clear()

    @rule(salt=salts, text=texts, data=st.data())
    def walks_to_the_longest(self, salt: bytes, text: tuple[int, ...], data: st.DataObject) -> None:
        path = self.index.walk(self.index.root(salt), ids(text))
        assert path.depth == self.longest((salt, text))
        part = path.cut(data.draw(st.integers(0, path.depth)))
        assert self.index.walk(part, ids(text[part.depth :])) == path

    def check(self, path: Path, text: Prefix) -> None:
        found = [self.rows[s][row + i] for s, row, n in path.spans() for i in range(n)]
        assert found == prefixes(text)
        places = path.hidden_from(0).tolist()
        for position, prefix in enumerate(prefixes(text)):
            place = path.hidden(position)
            assert places[position] == list(place or (-1, -1))
            assert (place is not None) == (prefix in self.hidden)
            if place is not None:
                assert self.hidden_rows[place[0]][place[1]] == prefix

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        for salt, tokens in self.used:
            path = self.index.walk(self.index.root(salt), ids(tokens))
            assert path.depth == len(tokens)
            self.check(path, (salt, tokens))
        for path, text in self.pinned:
            self.check(path, text)
        assert self.index.num_tokens == len(self.used)
        assert sum(use.rows for use in self.index.slabs.values()) == len(self.used)
        assert sum(use.hidden for use in self.index.slabs.values()) == len(self.hidden)
        entries = {entry for use in self.index.slabs.values() for entry in use.entries}
        assert self.index.num_entries == len(entries)
        assert all(use.entries for use in self.index.slabs.values())


def _tokens(entry: Entry) -> tuple[int, ...]:
    """All tokens up to the end of an entry that was dropped."""
    assert entry.parent is not None
    above = text_of(entry.parent)[1] if entry.parent.parent is not None else ()
    return (*above, *entry.tokens.tolist())


Index.TestCase.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
test_against_all_prefixes: Any = Index.TestCase


def add(index: PrefixIndex, salt: bytes, tokens: list[int], slab: int, *hidden: int) -> Path:
    path = index.walk(index.root(salt), ids(tokens))
    rest = ids(tokens[path.depth :])
    return index.add(path, rest, slab, 0, positions(list(hidden)), np.arange(len(hidden)))


def test_equal_tokens_under_two_salts_never_meet() -> None:
    index = PrefixIndex()
    add(index, b"a", [1, 2, 3], 0, 2)
    assert index.walk(index.root(b"b"), ids([1, 2, 3])).depth == 0
    add(index, b"b", [1, 2, 3], 1)
    own, other = (index.walk(index.root(salt), ids([1, 2, 3])) for salt in (b"a", b"b"))
    assert own.spans() == [(0, 0, 3)]
    assert other.spans() == [(1, 0, 3)]
    assert own.hidden(2) == (0, 0)
    assert other.hidden(2) is None
    assert index.drop_oldest() is own.entry
    assert index.walk(index.root(b"a"), ids([1])).depth == 0
    assert index.walk(index.root(b"b"), ids([1])).depth == 1


def test_two_texts_share_a_root_that_was_asked_for_before_either_was_kept() -> None:
    index = PrefixIndex()
    one, two = index.root(b""), index.root(b"")
    none = positions([])
    index.add(one, ids([1, 2]), 0, 0, none, none)
    index.add(two, ids([3, 4]), 1, 0, none, none)
    for root in (one, two, index.root(b"")):
        assert index.walk(root, ids([1, 2])).depth == 2
        assert index.walk(root, ids([3, 4])).depth == 2


def test_an_entry_is_cut_where_another_leaves_it() -> None:
    index = PrefixIndex()
    long = add(index, b"", [1, 2, 3, 4, 5, 6], 7, 1, 4)
    short = long.cut(2)
    leaving = add(index, b"", [1, 2, 9], 8)
    assert leaving.spans() == [(7, 0, 2), (8, 0, 1)]
    assert long.spans() == [(7, 0, 6)], "rows that follow each other are one span"
    assert short.spans() == [(7, 0, 2)]
    assert long.hidden(1) == leaving.hidden(1) == short.hidden(1) == (7, 0)
    assert long.hidden(4) == (7, 1)
    # The tail of the long one is the oldest, and goes without what both share.
    dropped = index.drop_oldest()
    assert dropped is not None
    assert dropped.tokens.tolist() == [3, 4, 5, 6]
    assert index.walk(index.root(b""), ids([1, 2, 3])).depth == 2
    assert leaving.spans() == [(7, 0, 2), (8, 0, 1)]


def test_what_is_kept_stays_and_only_new_hidden_states_are_taken() -> None:
    index = PrefixIndex()
    add(index, b"", [1, 2, 3], 0, 1)
    root = index.root(b"")
    again = index.add(root, ids([1, 2, 3]), 1, 10, positions([0, 1, 2]), np.array([5, 6, 7]))
    assert again.spans() == [(0, 0, 3)]
    assert [again.hidden(p) for p in range(3)] == [(1, 5), (0, 0), (1, 7)]
    assert again.hidden_from(1).tolist() == [[0, 0], [1, 7]]
    assert (index.slabs[1].rows, index.slabs[1].hidden) == (0, 2)
    assert (index.num_entries, index.num_tokens) == (1, 3)
    longer = index.add(root, ids([1, 2, 3, 4]), 2, 20, positions([3]), np.array([0]))
    assert longer.spans() == [(0, 0, 3), (2, 23, 1)]
    assert longer.hidden(3) == (2, 0)


def test_the_least_recently_used_leaf_goes_first_and_pinned_paths_stay() -> None:
    index = PrefixIndex()
    parent = add(index, b"", [1, 2], 0)
    children = [add(index, b"", [1, 2, token], token) for token in (3, 4, 5)]
    index.touch(children[0])
    index.pin(children[1])
    order = [index.drop_oldest() for _ in range(3)]
    assert order == [children[2].entry, children[0].entry, None]
    index.unpin(children[1])
    assert index.drop_oldest() is children[1].entry
    assert index.drop_oldest() is parent.entry
    assert index.drop_oldest() is None
    assert (index.num_entries, index.num_tokens, index.slabs) == (0, 0, {})


def test_pins_are_counted_and_a_cut_keeps_them_right() -> None:
    index = PrefixIndex()
    path = add(index, b"", [1, 2, 3, 4], 0)
    index.pin(path)
    index.pin(path.cut(2))
    add(index, b"", [1, 2, 9], 1)
    index.unpin(path)
    assert [e and e.tokens.tolist() for e in (index.drop_oldest(), index.drop_oldest())] == [
        [9],
        None,
    ]
    index.unpin(path.cut(2))
    with pytest.raises(ValueError, match="not pinned"):
        index.unpin(path)
    assert [e and e.tokens.tolist() for e in (index.drop_oldest(), index.drop_oldest())] == [
        [3, 4],
        [1, 2],
    ]


def test_a_path_to_what_was_dropped_or_cleared_is_refused() -> None:
    index = PrefixIndex()
    path, other = add(index, b"", [1, 2], 0), add(index, b"", [3], 1)
    index.drop_oldest()
    none = positions([])
    for use in (
        lambda: index.walk(path, ids([3])),
        lambda: index.add(path, ids([3]), 1, 0, none, none),
        lambda: index.pin(path),
        lambda: index.touch(path),
        lambda: path.hidden(0),
        lambda: path.hidden_from(0),
    ):
        with pytest.raises(ValueError, match="dropped"):
            use()
    root = index.root(b"")
    index.clear()
    with pytest.raises(ValueError, match="dropped"):
        other.spans()
    assert index.walk(root, ids([3])).depth == 0
    index.add(root, ids([4]), 0, 0, none, none)
    assert index.walk(index.root(b""), ids([4])).depth == 1


@pytest.mark.parametrize("depth", [-1, 4])
def test_a_path_cannot_be_cut_beyond_its_ends(depth: int) -> None:
    path = add(PrefixIndex(), b"", [1, 2, 3], 0)
    with pytest.raises(ValueError, match="cannot cut"):
        path.cut(depth)
