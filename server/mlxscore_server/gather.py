"""The masked gather on arrays, usable without a server: for those who port DPO or an evaluation to MLX.

Everything is right-justified: row b's last scored position stands in the last column, as left
padding leaves it. B rows, L positions, V vocabulary. Lengths are host integers, scores MLX arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx


@dataclass(frozen=True)
class Gathered:
    """What `gather_targets` found."""

    sums: mx.array
    """(B,) each row's sum over its own targets, in the scores' dtype (float32 for half types)."""
    values: mx.array
    """(B, L) each target's value at its position, right-justified; 0 where `mask` is False."""
    mask: mx.array
    """(B, L) bool, True at target positions."""


def last_positions(counts: Sequence[int], length: int) -> NDArray[np.bool_]:
    """(B, length) mask that is True at the last `counts[b]` positions of row b.

    Raises ValueError where a count is negative or larger than `length`.
    """
    wanted = np.asarray(counts, dtype=np.int64)
    if wanted.size and (wanted.min() < 0 or wanted.max() > length):
        bad = int(np.argmax((wanted < 0) | (wanted > length)))
        raise ValueError(f"row {bad} wants {int(wanted[bad])} of {length} positions")
    return np.arange(length)[None, :] >= length - wanted[:, None]


def completion_mask(
    prompt_lengths: Sequence[int], lengths: Sequence[int], num_positions: int
) -> NDArray[np.bool_]:
    """(B, num_positions) mask of the positions that predict each row's completion.

    Row b has `lengths[b]` tokens of which `prompt_lengths[b]` are prompt, so its last
    `lengths[b] - prompt_lengths[b]` positions are kept. Raises ValueError where the two lists differ
    in size, a prompt is longer than its row, or a completion is longer than `num_positions`.
    """
    if len(prompt_lengths) != len(lengths):
        raise ValueError(f"{len(prompt_lengths)} prompt lengths for {len(lengths)} lengths")
    counts = [n - p for p, n in zip(prompt_lengths, lengths, strict=True)]
    return last_positions(counts, num_positions)


def keep_completions(
    scores: mx.array, prompt_lengths: Sequence[int], lengths: Sequence[int]
) -> tuple[mx.array, mx.array]:
    """The rows of (B, L, V) scores at completion positions: (N, V) in row order, and the (B, L) mask.

    Raises ValueError as `completion_mask` does, or where the number of rows is not B.
    """
    num_rows, num_positions, vocab_size = _shape(scores)
    mask = completion_mask(prompt_lengths, lengths, num_positions)
    if len(mask) != num_rows:
        raise ValueError(f"{len(mask)} lengths for {num_rows} rows of scores")
    index = to_mlx(np.flatnonzero(mask).astype(np.int32))
    return mx.take(scores.reshape(-1, vocab_size), index, axis=0), to_mlx(mask)


def gather_targets(scores: mx.array, targets: Sequence[Sequence[int]]) -> Gathered:
    """Each row's targets' entries of (B, L, V) scores, and their sum.

    `targets[b]` are token ids, any number up to L, right-justified: the last of them is read at the
    last position. A shorter row contributes its own targets only: nothing is padded with a token.
    NaN and infinity at positions that are not targets do not reach the result. Raises ValueError
    where the number of rows differs, a row has more targets than positions, or an id is outside
    [0, V).
    """
    num_rows, num_positions, vocab_size = _shape(scores)
    if len(targets) != num_rows:
        raise ValueError(f"targets for {len(targets)} rows, scores for {num_rows}")
    mask = last_positions([len(row) for row in targets], num_positions)
    flat = np.fromiter((t for row in targets for t in row), np.int64, int(mask.sum()))
    if flat.size and (flat.min() < 0 or flat.max() >= vocab_size):
        wrong = int(np.argmax((flat < 0) | (flat >= vocab_size)))
        row = int(np.argmax(np.cumsum(mask.sum(axis=1)) > wrong))
        raise ValueError(
            f"row {row} has target id {int(flat[wrong])}, outside the vocabulary of {vocab_size}"
        )
    ids = np.zeros((num_rows, num_positions), np.int32)
    ids[mask] = flat
    read = mx.take_along_axis(scores, to_mlx(ids)[:, :, None], axis=-1)[:, :, 0]
    if read.dtype in (mx.float16, mx.bfloat16):
        read = read.astype(mx.float32)  # a sum of many halves would lose digits
    shown = to_mlx(mask)
    values = mx.where(shown, read, mx.zeros_like(read))  # where, not *: 0 * NaN is NaN
    return Gathered(values.sum(axis=-1), values, shown)


def target_logprobs(logits: mx.array, targets: Sequence[Sequence[int]]) -> Gathered:
    """`gather_targets` of the log-softmax of (B, L, V) logits, in float32 and in nats.

    No (B, L, V) log-softmax is made: a target's logprob is its logit minus its position's
    log-sum-exp. For rows where `targets` is a completion, `sums` are DPO's sequence logprobs.
    """
    logits = logits.astype(mx.float32)
    read = gather_targets(logits, targets)
    # In blocks of 64: MLX's CPU back end adds a long row one entry after another (up to 3e-4 off).
    highest = logits.max(axis=-1, keepdims=True)
    exps = mx.exp(logits - highest)
    pad = -exps.shape[-1] % 64
    blocks = mx.pad(exps, [(0, 0), (0, 0), (0, pad)]).reshape(*exps.shape[:-1], -1, 64)
    log_sum = mx.log(blocks.sum(-1).sum(-1)) + highest[:, :, 0]
    values = mx.where(read.mask, read.values - log_sum, mx.zeros_like(read.values))
    return Gathered(values.sum(axis=-1), values, read.mask)


def _shape(scores: mx.array) -> tuple[int, int, int]:
    if scores.ndim != 3:
        raise ValueError(f"scores must be (B, L, V), got {scores.ndim} axes")
    num_rows, num_positions, vocab_size = scores.shape
    return num_rows, num_positions, vocab_size
