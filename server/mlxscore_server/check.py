"""The self-check at load: this model's batched, split-head scores against its own `__call__`.

Nothing is believed of an architecture: a small probe decides whether left padding is right for it,
which form of mask it understands, whether the head's split keeps its numbers, and whether the
packed layout gives the same.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from mlxscore_client import wire
from mlxscore_server import cpu_kernels
from mlxscore_server.arrays import to_mlx, to_numpy
from mlxscore_server.errors import StartupError
from mlxscore_server.head import Project
from mlxscore_server.padding import MASK_FORMS, MaskForm
from mlxscore_server.row import Row, RowScore
from mlxscore_server.scoring import BatchScorer, Layout
from mlxscore_server.settings import LayoutChoice

log = logging.getLogger("mlxscore")

# A row's mean |difference| of a logprob (nats) up to which two ways of computing it count as the same.
# Padding that reaches a recurrent state shows as 0.5 to 6 in the worst row, rounding as 1e-6 in
# float32. What half precision does depends on the model and is measured; this much is always allowed.
_LIMITS = {mx.float32: 1e-4, mx.float16: 0.01, mx.bfloat16: 0.05}
# Never so much that leaking padding could pass.
_MOST = 0.2
_CHAINED_TOKENS = 16
"""Micro-batches so small that the probe's prefixes are kept from one to the next."""
_PROBE_BYTES = 2**28
_LONGEST_WINDOW = 512
"""Windows up to this are crossed by the probe; a longer one costs too much at each start."""


def self_check(scorer: BatchScorer, model: nn.Module, layout: LayoutChoice) -> wire.SelfCheck:
    """Set the scorer's layout and mask form to the best that is right; what was found.

    Raises StartupError where not even rows of equal length agree with the model's own answers.
    """
    if scorer.numpy_kernels and (reason := _check_kernels(scorer, model)):
        log.warning("numpy's kernels are not right for this model (%s): MLX's own are used", reason)
        scorer.use_numpy_kernels(False)
    with cpu_kernels.any_size():
        return _check_layouts(scorer, model, layout)


def _check_kernels(scorer: BatchScorer, model: nn.Module) -> str | None:
    """What is wrong with numpy's kernels in this model's own call; None if nothing is."""
    unequal, _ = _probe_rows(scorer, model)
    for row in unequal[-1:]:  # the longest
        own = _own_logprobs(scorer, model, row)
        try:
            with cpu_kernels.any_size():
                worst = float(np.abs(_logprobs(model, row) - own).mean())
        except Exception as error:
            return f"the model raised {type(error).__name__}: {error}".splitlines()[0]
        if not worst <= _LIMITS[mx.float32]:
            return f"a row differs by {worst:.2g} nats a token"
    return None


def _check_layouts(scorer: BatchScorer, model: nn.Module, layout: LayoutChoice) -> wire.SelfCheck:
    found, noise = _check_padding(scorer, model)
    if layout == "left-padded":
        return found
    padded, forms = scorer.layout, scorer.forward.mask_form
    reason = _check_packed(scorer, model, noise)
    if isinstance(reason, str):
        scorer.layout, scorer.forward.mask_form = padded, forms
        log.info("not packed, %s rows: %s", padded, reason)
        return found.model_copy(update={"packed_reason": reason})
    scorer.layout = "packed"
    return found.model_copy(
        update={
            "layout": "packed",
            "max_error": float(reason.max()),
            "mean_error": float(reason.mean()),
        }
    )


def _check_padding(scorer: BatchScorer, model: nn.Module) -> tuple[wire.SelfCheck, float]:
    """What was found, and the mean difference of the worst row."""
    unequal, equal = _probe_rows(scorer, model)
    wanted = [_own_logprobs(scorer, model, row) for row in unequal]
    reason = "no way was tried"
    for _ in range(2):
        limit = _limit(scorer, model, equal)
        for layout, form in _ways():
            scorer.layout, scorer.forward.mask_form = layout, form
            padded = layout == "left-padded"
            if padded:
                errors = _errors(scorer, unequal, wanted)
            else:
                errors = _errors(
                    scorer, equal, [_own_logprobs(scorer, model, row) for row in equal]
                )
            if isinstance(errors, str):
                reason = errors
            elif (worst := max(float(row.mean()) for row in errors)) <= limit:
                together = np.concatenate(errors)
                found = wire.SelfCheck(
                    layout=layout,
                    padding="left-padded" if padded else "equal-length",
                    max_error=float(together.max()),
                    mean_error=float(together.mean()),
                    reason=None if padded else reason,
                )
                return found, worst
            else:
                reason = f"a row in a {layout} batch differs from itself alone by {worst:.2g} nats a token"
        if not scorer.head.found:
            break
        log.warning("the output head's split does not hold for this model (%s): not used", reason)
        scorer.head.close()
    raise StartupError(
        f"this model's scores cannot be trusted, not even in equal-length rows: {reason}"
    )


def _check_packed(scorer: BatchScorer, model: nn.Module, noise: float) -> NDArray[np.float64] | str:
    """|differences| of the packed layout from single rows, or why it is not right for this model.

    In half precision it may differ three times as much as the rows of the proven layout do (`noise`).

    Rows that share prefixes, that share nothing, beyond a layer's window; in one micro-batch, in
    many with what came before kept, and once more with all of it kept.
    """
    if not scorer.head.found:
        return "the model has no output head of its own"
    rows = _sharing_rows(scorer, model)
    wanted = [_own_logprobs(scorer, model, row) for row in rows]
    _, equal = _probe_rows(scorer, model)
    limit = _limit(scorer, model, equal)
    if scorer.head.dtype != mx.float32:
        limit = float(np.clip(3 * noise, limit, _MOST))
    scorer.layout = "packed"
    before = scorer.max_batch_tokens, scorer.kept.max_bytes
    found: list[NDArray[np.float64]] = []
    try:
        for batch_tokens in (before[0], _CHAINED_TOKENS, _CHAINED_TOKENS):
            if batch_tokens == before[0]:
                scorer.kept.max_bytes = 0
            else:
                scorer.kept.max_bytes = max(before[1], _PROBE_BYTES)
            scorer.max_batch_tokens = batch_tokens
            errors = _errors(scorer, rows, wanted)
            if isinstance(errors, str):
                return errors
            worst = max(float(row.mean()) for row in errors)
            if worst > limit:
                return f"a packed row differs from itself alone by {worst:.2g} nats a token"
            found += errors
    finally:
        scorer.max_batch_tokens, scorer.kept.max_bytes = before
        scorer.kept.clear()
    return np.concatenate(found)


def _sharing_rows(scorer: BatchScorer, model: nn.Module) -> list[Row]:
    """Rows with a prefix in common, of several lengths, with long and short ends; and without one."""
    window = _window(model)
    rng = np.random.default_rng(1)

    def ids(length: int) -> NDArray[np.int32]:
        return rng.integers(0, scorer.head.num_embeddings, length).astype(np.int32)

    # No more than it takes: on a CPU each hundred tokens are half a second of every start.
    base, question = ids(max(20, window + 9)), ids(18)
    ends = [*(np.append(question, ids(n)) for n in (1, 2, 4)), ids(20)]
    rows = [np.append(base, end) for end in ends]
    return [Row(row.astype(np.int32), 1) for row in [*rows, ids(3), ids(12), ids(13)]]


def _ways() -> Iterator[tuple[Layout, MaskForm]]:
    for form in MASK_FORMS:
        yield "left-padded", form
    yield "equal-length", MASK_FORMS[0]


def _probe_rows(scorer: BatchScorer, model: nn.Module) -> tuple[list[Row], list[Row]]:
    """Rows of unequal and of equal length, random ids, every position scored."""
    window = _window(model)
    rng = np.random.default_rng(0)

    def row(length: int) -> Row:
        return Row(rng.integers(0, scorer.head.num_embeddings, length).astype(np.int32), 1)

    lengths = [3, 8, max(25, window + 9)]
    return [row(n) for n in lengths], [row(12) for _ in range(3)]


def _window(model: nn.Module) -> int:
    windows = [getattr(layer, "max_size", 0) or 0 for layer in make_prompt_cache(model)]
    return max((w for w in windows if w <= _LONGEST_WINDOW), default=0)


def _own_logprobs(scorer: BatchScorer, model: nn.Module, row: Row) -> NDArray[np.float64]:
    """(k,) float64 logprobs of a row through the model's own call, alone, unpadded, full logits, by MLX."""
    numpy_kernels = scorer.numpy_kernels
    scorer.use_numpy_kernels(False)
    try:
        return _logprobs(model, row)
    finally:
        scorer.use_numpy_kernels(numpy_kernels)


def _logprobs(model: nn.Module, row: Row) -> NDArray[np.float64]:
    logits = to_numpy(cast(Project, model)(to_mlx(row.inputs)[None])[0].astype(mx.float32)).astype(
        np.float64
    )
    logits = logits[row.start - 1 :]
    logits -= logits.max(axis=-1, keepdims=True)
    lse = np.log(np.exp(logits).sum(axis=-1))
    return logits[np.arange(len(logits)), row.targets] - lse


def _limit(scorer: BatchScorer, model: nn.Module, equal: Sequence[Row]) -> float:
    """Four times what precision alone does to a batch without padding, within bounds.

    A batch, because half-precision kernels differ between one row and several (quantised ones most).
    """
    least = _LIMITS[scorer.head.dtype]
    if scorer.head.dtype == mx.float32:
        return least
    scorer.layout = "equal-length"
    errors = _errors(scorer, equal, [_own_logprobs(scorer, model, row) for row in equal])
    noise = 0.0 if isinstance(errors, str) else max(float(row.mean()) for row in errors)
    return float(np.clip(4 * noise, least, _MOST))


def _errors(
    scorer: BatchScorer, rows: Sequence[Row], wanted: Sequence[NDArray[np.float64]]
) -> list[NDArray[np.float64]] | str:
    """Each row's |differences| when the rows run as one micro-batch, or why they could not."""
    try:
        scores = scorer.score_rows(rows)
    except Exception as error:
        return f"the model raised {type(error).__name__}: {error}".splitlines()[0]
    differences: list[NDArray[np.float64]] = []
    for score, own in zip(scores, wanted, strict=True):
        if not isinstance(score, RowScore):
            return "a score was not finite"
        differences.append(np.abs(score.logprobs.astype(np.float64) - own))
    return differences
