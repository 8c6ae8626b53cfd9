"""Forests of random tokens for the packed layout, run through a model in one or several micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray
from tiny_models import VOCAB

from mlxscore_server.block_attention import BlockAttention, attend_mlx
from mlxscore_server.block_costs import BlockCosts
from mlxscore_server.blocks import cut
from mlxscore_server.packed import PackedBatch

Ints = NDArray[np.int64]
Layers = list[tuple[mx.array, mx.array]]

# (parent, tokens): short siblings, chains, prefixes of several lengths, beyond a window of 8.
SHAPE = (
    (-1, 20),
    (0, 3),
    (0, 2),
    (0, 4),
    (0, 12),
    (4, 1),
    (4, 5),
    (4, 10),
    (7, 1),
    (0, 11),
    (9, 2),
    (9, 3),
    (-1, 5),
    (-1, 1),
    (13, 9),
    (-1, 33),
    (15, 2),
    (15, 17),
    (15, 24),
    (-1, 33),
)


@dataclass
class Forest:
    tokens: NDArray[np.int32]
    lengths: Ints
    starts: Ints
    parents: Ints

    @staticmethod
    def of(shape: Sequence[tuple[int, int]], seed: int = 0) -> "Forest":
        parents, lengths = (np.array(part) for part in zip(*shape, strict=True))
        starts = np.zeros_like(lengths)
        for node, parent in enumerate(parents.tolist()):
            starts[node] = starts[parent] + lengths[parent] if parent >= 0 else 0
        rng = np.random.default_rng(seed)
        tokens = rng.integers(0, VOCAB, lengths.sum()).astype(np.int32)
        return Forest(tokens, lengths, starts, parents)

    @property
    def offsets(self) -> Ints:
        return np.append(0, np.cumsum(self.lengths))

    def path(self, node: int) -> Ints:
        """Which tokens stand before and in a node."""
        own = np.arange(self.offsets[node], self.offsets[node + 1])
        parent = int(self.parents[node])
        return np.concatenate([self.path(parent), own]) if parent >= 0 else own

    def alone(self, model: nn.Module) -> NDArray[np.float32]:
        """(T, vocabulary) logits at each token, by the model itself: each path a row of its own."""
        logits = np.zeros((len(self.tokens), VOCAB), np.float32)
        for node in range(len(self.lengths)):
            if node in self.parents:
                continue
            path = self.path(node)
            row: Any = model(mx.array(self.tokens[path])[None], make_prompt_cache(model))
            logits[path] = np.array(row[0].astype(mx.float32))
        return logits

    def packed(
        self,
        model: nn.Module,
        costs: BlockCosts,
        cuts: Sequence[int] = (),
        attend: BlockAttention = attend_mlx,
    ) -> NDArray[np.float32]:
        """The same from packed micro-batches that begin at the nodes `cuts`."""
        template = make_prompt_cache(model)
        parts: list[NDArray[np.float32]] = []
        done: Layers = []
        edges = [0, *cuts, len(self.lengths)]
        for first, last in pairwise(edges):
            kept_paths, needed = self._kept_paths(first, last)
            kept = [(k[mx.array(needed)], v[mx.array(needed)]) for k, v in done if len(needed)]
            parents = self.parents[first:last] - first
            low, high = self.offsets[first], self.offsets[last]
            batch = PackedBatch(
                self.tokens[low:high],
                np.concatenate(
                    [self.starts[i] + np.arange(self.lengths[i]) for i in range(first, last)]
                ),
                cut(
                    self.lengths[first:last],
                    self.starts[first:last],
                    np.maximum(parents, -1),
                    kept_paths,
                    costs,
                    num_kept=len(needed),
                ),
                kept,
                attend,
            )
            logits: Any = model(batch.x, batch.stand_ins(template))
            parts.append(np.array(logits[:, 0].astype(mx.float32)))
            new = batch.layer_rows()
            done = (
                [
                    (mx.concatenate([k, nk]), mx.concatenate([v, nv]))
                    for (k, v), (nk, nv) in zip(done, new, strict=True)
                ]
                if done
                else new
            )
        return np.concatenate(parts)

    def _kept_paths(self, first: int, last: int) -> tuple[list[NDArray[np.int32] | None], Ints]:
        """For nodes [first, last) their kept rows, and which tokens these rows are, in any order."""
        outside = {
            node: self.path(int(self.parents[node]))
            for node in range(first, last)
            if 0 <= self.parents[node] < first
        }
        if not outside:
            return [None] * (last - first), np.zeros(0, np.int64)
        needed = np.random.default_rng(first).permutation(
            np.unique(np.concatenate(list(outside.values())))
        )
        place = {token: i for i, token in enumerate(needed.tolist())}
        paths = [
            np.array([place[token] for token in outside[node].tolist()], np.int32)
            if node in outside
            else None
            for node in range(first, last)
        ]
        return paths, needed
