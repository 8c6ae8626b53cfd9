"""One micro-batch through the model: left-pad, mask, forward, masked gather. Knows no HTTP, no queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx
from mlxscore_server.device import Device
from mlxscore_server.errors import MlxscoreError, NonFiniteLogits
from mlxscore_server.head import Head
from mlxscore_server.logits import Read, Wanted, read_mlx, read_numpy
from mlxscore_server.padding import MaskForm, PaddedBatch, right_justified, stand_ins
from mlxscore_server.plan import MicroBatch, plan
from mlxscore_server.row import Row, RowScore

Layout = Literal["left-padded", "equal-length"]


@dataclass(frozen=True)
class _Pairs:
    """Scored tokens of a micro-batch, P of them in row order, as positions of its (B, L) outputs."""

    rows: NDArray[np.int32]
    """(W,) wanted positions, ascending, each once: slot * L + column."""
    row_of_pair: NDArray[np.int32]
    """(P,) index into `rows`."""
    targets: NDArray[np.int32]
    """(P,)"""
    ends: NDArray[np.int64]
    """(number of rows,) where each row's pairs end."""

    @staticmethod
    def of(batch: MicroBatch) -> "_Pairs":
        counts = np.array([row.num_targets for row in batch.rows])
        ends = np.cumsum(counts)
        # Input position p predicts token p + 1, and a slot's last input stands in the last column:
        # the last target of each row is predicted in column L - 1.
        last_of_row = (np.array(batch.slots) + 1) * batch.length - 1
        num_pairs = int(ends[-1])
        back = np.repeat(ends, counts) - 1 - np.arange(num_pairs)
        positions = np.repeat(last_of_row, counts) - back
        rows, row_of_pair = np.unique(positions, return_inverse=True)
        targets = np.concatenate([row.targets for row in batch.rows])
        return _Pairs(rows.astype(np.int32), row_of_pair.astype(np.int32), targets, ends)


class BatchScorer:
    """Scores micro-batches with a resident model. Make and use it on one thread.

    `mask_form` and `layout` are what the self-check proved for this model.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        *,
        float32_head: bool = True,
        max_batch_tokens: int | None = None,
        mask_form: MaskForm = "additive",
        layout: Layout = "left-padded",
    ) -> None:
        self.head = Head(model, float32=float32_head)
        self.mask_form: MaskForm = mask_form
        self.layout: Layout = layout
        self.max_batch_tokens = max_batch_tokens or device.max_batch_tokens
        self._device = device
        self._template: list[Any] = list(make_prompt_cache(model))
        self._read: Callable[[mx.array, Wanted], Read] = (
            read_numpy if device.numpy_reads_logits else read_mlx
        )
        self._chunk = max(1, device.logits_bytes // (4 * self.head.vocab_size))

    def plan(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """Micro-batches that suit this model and device."""
        return plan(
            rows,
            max_batch_tokens=self.max_batch_tokens,
            batch_overhead=self._device.batch_overhead,
            pad=self.layout == "left-padded",
            length_multiple=self._device.length_multiple,
        )

    def score(self, batch: MicroBatch) -> list[RowScore | MlxscoreError]:
        """Each row's score, in order; NonFiniteLogits for a row whose logits are NaN or infinite."""
        pairs = _Pairs.of(batch)
        tokens, left_padding = right_justified(batch.inputs, batch.length)
        cache = None
        if self.layout == "left-padded":
            shared = PaddedBatch(left_padding, batch.length, self.head.dtype, self.mask_form)
            cache = stand_ins(self._template, shared)
        elif left_padding.any():
            raise ValueError("this model's rows must be of equal length in a micro-batch")
        tops = np.array([row.top_logprobs for row in batch.rows])
        read = self._read_pairs(to_mlx(tokens), cache, pairs, batch, tops)
        return _split(read, pairs.ends, batch.rows, tops)

    def _read_pairs(
        self,
        tokens: mx.array,
        cache: list[Any] | None,
        pairs: _Pairs,
        batch: MicroBatch,
        tops: NDArray[np.int64],
    ) -> Read:
        """Run the model and read all pairs, in their order; `top_*` only for rows that ask for it."""
        num_pairs = len(pairs.targets)
        top, ranks = int(tops.max()), any(row.ranks for row in batch.rows)
        top = min(top, self.head.vocab_size)
        counts = np.diff(pairs.ends, prepend=0)
        wants_top = np.repeat(tops > 0, counts)
        targets = np.empty(num_pairs, np.int32)
        logprobs = np.empty(num_pairs, np.float32)
        greedy = np.empty(num_pairs, np.bool_)
        rank = np.empty(num_pairs, np.int32) if ranks else None
        top_ids = np.zeros((num_pairs if top else 0, top), np.int32)
        top_logprobs = np.zeros((num_pairs if top else 0, top), np.float32)

        order = np.argsort(pairs.row_of_pair, kind="stable")
        sorted_rows = pairs.row_of_pair[order]
        start = 0
        for logits in self.head.logits(tokens, cache, to_mlx(pairs.rows), self._chunk):
            stop = start + logits.shape[0]
            here = order[np.searchsorted(sorted_rows, start) : np.searchsorted(sorted_rows, stop)]
            rows = pairs.row_of_pair[here] - np.int32(start)
            with_top = here[wants_top[here]]
            top_rows, top_of = np.unique(
                pairs.row_of_pair[with_top] - np.int32(start), return_inverse=True
            )
            read = self._read(logits, Wanted(rows, pairs.targets[here], ranks, top, top_rows))
            targets[here], logprobs[here], greedy[here] = read.targets, read.logprobs, read.greedy
            if rank is not None and read.ranks is not None:
                rank[here] = read.ranks
            if top:
                top_ids[with_top] = read.top_ids[top_of]
                top_logprobs[with_top] = read.top_logprobs[top_of]
            start = stop
        return Read(targets, logprobs, greedy, rank, top_ids, top_logprobs)

    def close(self) -> None:
        """Give the model its own head back and the thread's MLX state up. Last call on the thread."""
        self.head.close()
        mx.synchronize()
        mx.clear_streams()


def _split(
    read: Read, ends: NDArray[np.int64], rows: tuple[Row, ...], tops: NDArray[np.int64]
) -> list[RowScore | MlxscoreError]:
    """The pairs' answers, row by row, as arrays of their own (views would keep the whole batch)."""
    answers: list[RowScore | MlxscoreError] = []
    finite = np.logical_and.reduceat(np.isfinite(read.logprobs), np.concatenate([[0], ends[:-1]]))
    for i, (row, end) in enumerate(zip(rows, ends.tolist(), strict=True)):
        if not finite[i]:
            answers.append(NonFiniteLogits("the model gave NaN or infinity on this row"))
            continue
        part, top = slice(end - row.num_targets, end), int(tops[i])
        answers.append(
            RowScore(
                logprobs=read.logprobs[part].copy(),
                greedy=read.greedy[part].copy(),
                ranks=read.ranks[part].copy() if row.ranks and read.ranks is not None else None,
                top_ids=read.top_ids[part, :top].copy() if top else None,
                top_logprobs=read.top_logprobs[part, :top].copy() if top else None,
                next_id=int(read.targets[end - 1]) if row.next_token else None,
            )
        )
    return answers
