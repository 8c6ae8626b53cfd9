"""What is read off rows of logits: logprob, argmax, rank, the k best. One function, chosen per device.

Given (R, V) float32 logits and P (row, target) pairs. float32 throughout; each function is within
2e-6 of float64 on rows of up to 256,000 entries.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx, to_numpy, view_numpy
from mlxscore_server.reading import Floats, Ints, Read, Wanted

Reading = Callable[[], Read]
"""Waits for what was asked of a chunk of logits."""

# Rows that numpy works on at once: 8 x 49,152 float32 (1.5 MB) stay in a core's cache.
_ROWS_AT_ONCE = 8


def read_numpy(logits: mx.array, wanted: Wanted) -> Reading:
    """For the CPU back end: numpy on MLX's own memory, many times faster than MLX's kernels there.

    There is no device beside the processor to wait for: all is done at once.
    """
    # NaN and infinity are not warned of here: the caller looks whether each logprob is finite.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        read = _read_numpy(logits, wanted)
    return lambda: read


def _read_numpy(logits: mx.array, wanted: Wanted) -> Read:
    x: Floats = view_numpy(logits.astype(mx.float32))
    best, lse = _best_and_lse(x)
    rows = wanted.rows
    targets = np.where(wanted.targets < 0, best[rows], wanted.targets)
    of_target = x[rows, targets]
    ranks = None
    if wanted.ranks:
        ranks = np.empty(len(rows), np.int32)
        for i in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(i, i + _ROWS_AT_ONCE)
            greater = x[rows[part]] > of_target[part, None]
            ranks[part] = 1 + np.count_nonzero(greater, axis=1)
    among = None
    if wanted.among is not None:
        asked, of_asked = np.unique(rows, return_inverse=True)
        chosen = np.empty(len(asked), np.float64)
        for i in range(0, len(asked), _ROWS_AT_ONCE):
            part = slice(i, i + _ROWS_AT_ONCE)
            chosen[part] = _best_and_lse(x[asked[part]][:, wanted.among])[1]
        among = (chosen[of_asked] - lse[rows]).astype(np.float32)
    top_rows = wanted.top_rows
    if wanted.top == 1:  # known already
        top_ids = best[top_rows, None]
        top = x[top_rows[:, None], top_ids]
    else:
        top_ids, top = _top_numpy(x[top_rows], wanted.top) if wanted.top else _no_top(wanted)
    return Read(
        targets=targets,
        logprobs=(of_target - lse[rows]).astype(np.float32),
        greedy=best[rows] == targets,
        ranks=ranks,
        top_ids=top_ids,
        top_logprobs=(top - lse[top_rows, None]).astype(np.float32),
        among_logprobs=among,
    )


def _best_and_lse(x: Floats) -> tuple[Ints, NDArray[np.float64]]:
    """(R,) argmax and (R,) log-sum-exp in float64 of each row."""
    best = np.empty(len(x), np.int32)
    lse = np.empty(len(x), np.float64)
    buffer = np.empty((_ROWS_AT_ONCE, x.shape[1]), np.float32)
    for i in range(0, len(x), _ROWS_AT_ONCE):
        part = x[i : i + _ROWS_AT_ONCE]
        arg = part.argmax(axis=1)
        highest = np.take_along_axis(part, arg[:, None], axis=1)
        exps = buffer[: len(part)]
        np.exp(np.subtract(part, highest, out=exps), out=exps)
        # numpy adds pairwise, in blocks: 7e-7 off at 49,152 entries.
        lse[i : i + len(part)] = highest[:, 0] + np.log(exps.sum(axis=1), dtype=np.float64)
        best[i : i + len(part)] = arg
    return best, lse


def _top_numpy(x: Floats, k: int) -> tuple[Ints, Floats]:
    """The k best of each row, (T, k) ids and logits: exact, in two levels.

    The k best lie in the k blocks with the largest maxima, so only k x block entries are sorted.
    """
    size = _block_size(k)
    num_rows, width = x.shape
    blocks = -(-width // size)
    padded = np.full((num_rows, blocks * size), -np.inf, np.float32)
    padded[:, :width] = x
    padded = padded.reshape(num_rows, blocks, size)
    # Stable sorts and ascending block numbers keep the lowest id first among equals.
    chosen = np.sort(np.argsort(-padded.max(-1), axis=1, kind="stable")[:, :k], axis=1)
    entries = np.take_along_axis(padded, chosen[:, :, None], axis=1).reshape(num_rows, -1)
    ids = (chosen[:, :, None] * size + np.arange(size)).reshape(num_rows, -1)
    order = np.argsort(-entries, axis=1, kind="stable")[:, :k]
    top_ids = np.take_along_axis(ids, order, axis=1).astype(np.int32)
    return top_ids, np.take_along_axis(entries, order, axis=1)


def read_mlx(logits: mx.array, wanted: Wanted) -> Reading:
    """For Metal and CUDA: fused kernels, begun at once; one transfer of small arrays at the end."""
    lse = mx.logsumexp(logits, axis=-1).astype(mx.float32)
    best = mx.argmax(logits, axis=-1).astype(mx.int32)
    rows, targets = to_mlx(wanted.rows), to_mlx(wanted.targets)
    targets = mx.where(targets < 0, best[rows], targets)
    flat = rows.astype(mx.int64) * logits.shape[-1] + targets
    of_target = mx.take(logits.reshape(-1), flat).astype(mx.float32)
    outputs = [of_target - lse[rows], best[rows] == targets, targets]
    if wanted.ranks:
        greater = _rows(logits, wanted.rows) > of_target[:, None].astype(logits.dtype)
        outputs.append(greater.astype(mx.int32).sum(axis=-1) + 1)
    if wanted.top:
        top_rows = to_mlx(wanted.top_rows)
        if wanted.top == 1:  # known already
            top_ids = best[top_rows][:, None]
            first = top_rows.astype(mx.int64)[:, None] * logits.shape[-1] + top_ids
            top = mx.take(logits.reshape(-1), first)
        else:
            top_ids, top = _top_mlx(_rows(logits, wanted.top_rows), wanted.top)
        outputs += [top_ids, top.astype(mx.float32) - lse[top_rows][:, None]]
    if wanted.among is not None:
        chosen = mx.take(logits, to_mlx(wanted.among), axis=-1)
        outputs.append(mx.logsumexp(chosen.astype(mx.float32), axis=-1)[rows] - lse[rows])
    mx.async_eval(outputs)

    def finish() -> Read:
        found = [to_numpy(output) for output in outputs]
        among = found.pop() if wanted.among is not None else None
        top_ids, top_logprobs = (found[-2], found[-1]) if wanted.top else _no_top(wanted)
        return Read(
            targets=found[2],
            logprobs=found[0],
            greedy=found[1],
            ranks=found[3] if wanted.ranks else None,
            top_ids=top_ids.astype(np.int32),
            top_logprobs=top_logprobs,
            among_logprobs=among,
        )

    return finish


def _rows(logits: mx.array, rows: Ints) -> mx.array:
    """These rows of the logits. Neighbours are sliced: a gather of whole rows of a large vocabulary
    costs as much as a tenth of a 1B model's forward pass."""
    if len(rows) and (np.diff(rows) == 1).all():
        return logits[int(rows[0]) : int(rows[-1]) + 1]
    return logits[to_mlx(rows)]


def _top_mlx(x: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """As `_top_numpy`; MLX's own top-k sorts whole rows, 25 times slower."""
    size = _block_size(k)
    num_rows, width = x.shape
    pad = -width % size
    blocks = (width + pad) // size
    padded = mx.pad(x, [(0, 0), (0, pad)], constant_values=-float("inf")) if pad else x
    padded = padded.reshape(num_rows, blocks, size)
    highest = padded.max(axis=-1)
    kept = min(k, blocks)
    chosen = mx.argsort(-highest, axis=-1)[:, :kept] if kept < blocks else None
    if chosen is None:
        chosen = mx.broadcast_to(mx.arange(blocks)[None, :], (num_rows, blocks))
    chosen = mx.sort(chosen.astype(mx.int32), axis=-1)
    entries = mx.take_along_axis(padded, chosen[:, :, None], axis=1).reshape(num_rows, -1)
    ids = (chosen[:, :, None] * size + mx.arange(size, dtype=mx.int32)).reshape(num_rows, -1)
    order = mx.argsort(-entries, axis=-1)[:, :k]
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(entries, order, axis=-1)


def _block_size(k: int) -> int:
    return 64 if k >= 100 else 256


def _no_top(wanted: Wanted) -> tuple[Ints, Floats]:
    return np.empty((len(wanted.top_rows), 0), np.int32), np.empty(
        (len(wanted.top_rows), 0), np.float32
    )
