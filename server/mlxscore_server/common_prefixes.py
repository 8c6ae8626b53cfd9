"""What rows begin with in common: the rows' inputs, sorted, and their shared prefixes as a tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from mlxscore_server.row import Ids, Int64s, Row

_LOOK, _LOOK_EACH = 65536, 32
"""Tokens compared at a time: in all, but at least so many of each text. With 200,000 tokens in rows
of 100 or 1,500 this took 1 ms on one core of a server; with four times as many, out of cache, 4 ms."""


@dataclass(frozen=True)
class Texts:
    """The distinct inputs of rows, sorted so that those with a prefix in common are neighbours."""

    flat: Ids
    """All of them, one after the other, each behind its salt (if they have several)."""
    firsts: Int64s
    """Where in `flat` each one's tokens begin."""
    lengths: Int64s
    """How many tokens each has."""
    salt_words: int

    @staticmethod
    def of(rows: Sequence[Row]) -> tuple["Texts", Int64s]:
        """And which of them each row is."""
        keys = [row.key for row in rows]
        salts = {row.salt for row in rows}
        word = np.dtype(np.int32).itemsize
        salt_words = 0
        if len(salts) > 1:
            # Of one length for all, as if each row began with the same number of further tokens.
            digests = {salt: blake2b(salt, digest_size=4 * word).digest() for salt in salts}
            keys = [digests[row.salt] + key for row, key in zip(rows, keys, strict=True)]
            salt_words = 4
        # Bytes sort at C's speed. Their order is not that of the numbers; any order will do.
        distinct = sorted(set(keys))
        index = {key: i for i, key in enumerate(distinct)}
        words = np.array([len(key) for key in distinct]) // word
        texts = Texts(
            flat=np.frombuffer(b"".join(distinct), np.int32),
            firsts=np.cumsum(words) - words + salt_words,
            lengths=words - salt_words,
            salt_words=salt_words,
        )
        return texts, np.array([index[key] for key in keys])

    def common(self) -> Int64s:
        """How many tokens each has in common with the next; 0 for the last."""
        begins = self.firsts - self.salt_words
        words = self.lengths + self.salt_words
        limits = np.minimum(words, np.append(words[1:], 0))
        found = np.zeros_like(words)
        open_ones, seen = np.flatnonzero(limits), 0
        while len(open_ones):
            # As much at a time as stays in the processor's cache; most end within the first look.
            width = max(_LOOK // len(open_ones), _LOOK_EACH)
            ahead = np.arange(seen, seen + width)
            ours = self.flat.take(begins[open_ones, None] + ahead, mode="clip")
            others = self.flat.take(begins[open_ones + 1, None] + ahead, mode="clip")
            same = ours == others
            same_for = np.where(same.all(axis=1), width, same.argmin(axis=1))
            # Past the end of the shorter one this compared other texts: the limit sees to that.
            found[open_ones] = np.minimum(seen + same_for, limits[open_ones])
            seen += width
            open_ones = open_ones[(same_for == width) & (limits[open_ones] > seen)]
        return np.maximum(found - self.salt_words, 0)

    def runs(self, sources: Int64s, lengths: Int64s) -> Ids:
        """Tokens of `flat`, run after run."""
        stops = (sources + lengths).tolist()
        runs = [self.flat[i:j] for i, j in zip(sources.tolist(), stops, strict=True)]
        return np.concatenate(runs)


@dataclass(frozen=True)
class Prefixes:
    """What neighbouring texts have in common, as a tree. The first stands for the empty prefix.

    Lists, since they are walked one by one: numpy's numbers are slow at that.
    """

    depths: list[int]
    """Tokens from the beginning of the text."""
    parents: list[int]
    """The next shorter prefix."""
    texts: list[int]
    """One of the texts that begin so."""
    homes: list[int]
    """For each text the longest of these prefixes that it begins with."""

    @staticmethod
    def of(common: list[int]) -> "Prefixes":
        """From how much each text has in common with the next one."""
        depths, parents, texts, homes = [0], [0], [0], list[int]()
        path = [0]
        for text, depth in enumerate(common):
            top = path[-1]
            if depth <= depths[top]:
                homes.append(top)
                while depths[path[-1]] > depth:
                    top = path.pop()
                if depths[path[-1]] == depth:
                    continue
                # Shorter than the last, longer than the one before: it comes between the two.
                parents[top] = len(depths)
            else:
                homes.append(len(depths))
            parents.append(path[-1])
            path.append(len(depths))
            depths.append(depth)
            texts.append(text)
        return Prefixes(depths, parents, texts, homes)

    def worth(self, node_cost: int) -> "Prefixes":
        """Those that save `node_cost` tokens or more, parents first."""
        ways = np.bincount(self.parents[1:] + self.homes, minlength=len(self.depths)).tolist()
        depths, parents, texts = [0], [0], [0]
        kept = [0] * len(self.depths)
        """For each prefix the longest part of it that is kept."""
        by_depth = sorted(range(len(self.depths)), key=self.depths.__getitem__)
        for i in by_depth[1:]:
            above, depth = kept[self.parents[i]], self.depths[i]
            if (depth - depths[above]) * (ways[i] - 1) < node_cost:
                kept[i] = above
                continue
            kept[i] = len(depths)
            depths.append(depth)
            parents.append(above)
            texts.append(self.texts[i])
        return Prefixes(depths, parents, texts, [kept[i] for i in self.homes])
