"""Which token prefixes are kept, and where their rows lie. Knows no MLX, no time, no bytes.

A radix tree of entries for each salt. An entry is a run of tokens whose keys and values lie one after
another in a slab (the arrays that a micro-batch left behind). Caches of attention can be cut anywhere,
so an entry is cut in two wherever another one leaves it: no prefix is kept twice, one child at most
begins with a given token, and what nobody continues can be dropped without what is above it.
"""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from mlxscore_server.prefix_path import TOKEN_BYTES, Entry, Hidden, Path
from mlxscore_server.row import Ids, Int64s
from mlxscore_server.slab_uses import SlabUses


class PrefixIndex:
    """Finds the longest kept prefix of a text; knows what was used least recently, and what lives where."""

    def __init__(self) -> None:
        self._roots: dict[bytes, Entry] = {}
        # Unpinned entries, the least recently used first. Whatever moves an entry to the end moves
        # its ancestors behind it, so the first never has children.
        self._recent: OrderedDict[Entry, None] = OrderedDict()
        self.slabs = SlabUses()
        """Slabs in which something lives."""
        self.num_entries = 0
        self.num_tokens = 0

    def root(self, salt: bytes) -> Path:
        """The empty prefix under a salt; texts under different salts never meet."""
        root = self._roots.get(salt)
        return Path(root or Entry(None, 0, b"", -1, 0, [], salt), 0)

    def walk(self, path: Path, tokens: Ids) -> Path:
        """The longest kept prefix of the text that goes on with `tokens` where `path` ends."""
        entry, depth = self._last(path), path.depth
        data, at = tokens.tobytes(), 0
        while True:
            begun = (depth - entry.start) * TOKEN_BYTES
            rest = entry.data[begun:] if begun else entry.data
            if not data.startswith(rest, at):
                return Path(entry, depth + _num_common(rest, data[at : at + len(rest)]))
            depth, at = entry.end, at + len(rest)
            if at == len(data):
                return Path(entry, depth)
            child = entry.children.get(tokens.item(at // TOKEN_BYTES))
            if child is None:
                return Path(entry, depth)
            entry = child

    def add(
        self,
        path: Path,
        tokens: Ids,
        slab: int,
        row: int,
        hidden_positions: Int64s,
        hidden_rows: Int64s,
    ) -> Path:
        """Keep `tokens`, which go on where `path` ends and lie in a slab from `row` on; their path.

        What is kept already stays where it is: only the rest of the tokens becomes an entry, and only
        hidden states of positions (absolute, ascending) that had none are taken from the new slab.
        """
        found = self.walk(path, tokens)
        old = int(hidden_positions.searchsorted(found.depth)) if len(hidden_positions) else 0
        if old:
            states = Hidden(slab, hidden_positions[:old], hidden_rows[:old])
            self._add_hidden(found, states, path.depth)
        if (known := found.depth - path.depth) < len(tokens):
            parent = self._last(found)
            if found.depth < parent.end:
                parent = self._cut(parent, found.depth)
            if parent.parent is None:
                self._roots[parent.salt] = parent
            end = path.depth + len(tokens)
            hidden: list[Hidden] = []
            if old < len(hidden_positions):
                hidden.append(Hidden(slab, hidden_positions[old:].copy(), hidden_rows[old:].copy()))
            data = tokens[known:].tobytes()
            entry = Entry(parent, found.depth, data, slab, row + known, hidden)
            parent.children[entry.at(0)] = entry
            self._recent[entry] = None
            self.slabs.house(entry)
            self.num_entries += 1
            self.num_tokens += entry.num_tokens
            found = Path(entry, end)
        self.touch(found)
        return found

    def pin(self, path: Path) -> None:
        """Never drop this path until it is unpinned; pins are counted."""
        for entry in path.entry.chain():
            if not entry.pins:
                del self._recent[entry]
            entry.pins += 1

    def unpin(self, path: Path) -> None:
        """Take off one pin of this very path; counts as use."""
        if path.entry.dropped:
            return  # all was cleared
        for entry in path.entry.chain():
            if not entry.pins:
                raise ValueError("this is a bug: a path is unpinned that was not pinned")
            entry.pins -= 1
            if not entry.pins:
                self._recent[entry] = None

    def touch(self, path: Path) -> None:
        """This path was used now."""
        for entry in path.entries():
            if not entry.pins:
                self._recent.move_to_end(entry)

    def drop_oldest(self) -> Entry | None:
        """Drop the least recently used entry that is not pinned and that nothing hangs on; O(1)."""
        if not self._recent:
            return None
        entry = next(iter(self._recent))
        self._remove(entry)
        return entry

    def forget(self, path: Path) -> None:
        """Drop a path and all that goes on from it, but what is pinned."""
        if path.entry.dropped:
            return
        for entry in path.entries():
            if not entry.pins:
                for below in reversed(list(_with_descendants(entry))):
                    self._remove(below)

    def _remove(self, entry: Entry) -> None:
        """Drop an entry that is not pinned and that nothing hangs on."""
        assert entry.parent is not None and not entry.children, "this is a bug: not a leaf"
        del self._recent[entry]
        del entry.parent.children[entry.at(0)]
        if entry.parent.parent is None and not entry.parent.children:
            del self._roots[entry.parent.salt]
        entry.dropped = True
        self.slabs.unhouse(entry)
        self.num_entries -= 1
        self.num_tokens -= entry.num_tokens

    def clear(self) -> None:
        """Forget everything, pinned or not; paths to it are void."""
        for use in self.slabs.values():
            for entry in use.entries:
                entry.dropped = True
        for root in self._roots.values():
            root.children.clear()
        self._roots.clear()
        self._recent.clear()
        self.slabs.clear()
        self.num_entries = self.num_tokens = 0

    def _last(self, path: Path) -> Entry:
        """The entry that holds a path's last token, or the root that its salt has now."""
        for entry in path.entries():
            return entry
        root = path.entry.root
        return self._roots.get(root.salt, root)

    def _cut(self, entry: Entry, depth: int) -> Entry:
        """Cut an entry in two; the new upper part. Paths to the entry stay right."""
        assert entry.parent is not None
        self.slabs.unhouse(entry)
        count = depth - entry.start
        upper = Entry(
            entry.parent,
            entry.start,
            entry.data[: count * TOKEN_BYTES],
            entry.slab,
            entry.row,
            [part for kept in entry.hidden for part in kept.between(entry.start, depth)],
            pins=entry.pins,
        )
        entry.parent.children[upper.at(0)] = upper
        entry.hidden = [part for kept in entry.hidden for part in kept.between(depth, entry.end)]
        entry.data = entry.data[count * TOKEN_BYTES :]
        entry.row += count
        entry.parent, entry.start = upper, depth
        upper.children[entry.at(0)] = entry
        if not upper.pins:
            self._recent[upper] = None
        self.slabs.house(entry)
        self.slabs.house(upper)
        self.num_entries += 1
        return upper

    def _add_hidden(self, path: Path, hidden: Hidden, start: int) -> None:
        """Take hidden states from `start` on for positions of a path that have none."""
        for entry in path.entries():
            for new in hidden.between(max(entry.start, start), min(entry.end, path.depth)):
                known = [kept.positions for kept in entry.hidden]
                if known:
                    lacks = ~np.isin(new.positions, np.concatenate(known))
                    new.positions, new.rows = new.positions[lacks], new.rows[lacks]
                if len(new.positions):
                    self.slabs.unhouse(entry)
                    entry.hidden.append(new)
                    self.slabs.house(entry)
            if entry.start <= start:
                return


def _with_descendants(entry: Entry) -> Iterator[Entry]:
    """It and all that hangs on it, each before what hangs on it. A loop: chains may be long."""
    waiting = [entry]
    while waiting:
        entry = waiting.pop()
        yield entry
        waiting += entry.children.values()


def _num_common(a: bytes, b: bytes) -> int:
    """How many tokens two runs, which are not equal, begin with alike."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    differs = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
