"""Attention of a few queries on all their keys, in numpy: what every thread does with its tile."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Workspace:
    """One thread's memory for scores, used again from tile to tile so that it stays in the caches."""

    def __init__(self, num_scores: int, num_keys: int) -> None:
        """For tiles of at most so many scores (rows * query heads * queries * keys), and keys."""
        self._scores = np.empty(num_scores, np.float32)
        self._ones = np.ones(num_keys, np.float32)

    def attend(
        self,
        queries: Floats,
        keys: Floats,
        values: Floats,
        scale: float,
        mask: Floats | None,
        sinks: Floats | None,
    ) -> Floats:
        """(b, n, G, D) queries of the G heads that share a key head, (b, m, D) keys, (b, m, Dv)
        values, to (b, n, G, Dv).

        `mask` is added to the scores of the last keys: it broadcasts to (b, G, n, as many). `sinks`
        are (G,) logits that take part in the softmax and add nothing.
        """
        rows, num_queries, heads, size = queries.shape
        num_keys = keys.shape[1]
        asked = np.empty((rows, heads, num_queries, size), np.float32)
        np.multiply(queries.swapaxes(1, 2), np.float32(scale), out=asked)
        scores = self._scores[: rows * heads * num_queries * num_keys]
        scores = scores.reshape(rows, heads * num_queries, num_keys)
        np.matmul(asked.reshape(rows, -1, size), keys.swapaxes(1, 2), out=scores)
        by_head = scores.reshape(rows, heads, num_queries, num_keys)
        if mask is not None:
            last = by_head[..., num_keys - mask.shape[-1] :]
            np.add(last, mask, out=last)
        highest = by_head.max(axis=-1, keepdims=True)
        if sinks is not None:
            np.maximum(highest, sinks[:, None, None], out=highest)
        np.subtract(by_head, highest, out=by_head)
        np.exp(scores, out=scores)
        # A product with ones is three times as fast as numpy's sum over short rows.
        total = np.matmul(by_head, self._ones[:num_keys])[..., None]
        if sinks is not None:
            total += np.exp(sinks[:, None, None] - highest)
        answers = np.matmul(scores, values).reshape(rows, heads, num_queries, -1)
        # Of these there are fewer than of the scores.
        np.divide(answers, total, out=answers)
        return answers.swapaxes(1, 2)
