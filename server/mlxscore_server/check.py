"""The self-check at load: this model's batched, split-head scores against its own `__call__`.

Nothing is believed of an architecture: a small probe decides whether left padding is right for it,
which form of mask it understands, whether the head's split keeps its numbers, and whether the
packed layout gives the same.
"""

import logging
from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxscore_client import wire
from mlxscore_server import cpu_kernels
from mlxscore_server.errors import StartupError
from mlxscore_server.padding import MASK_FORMS, MaskForm
from mlxscore_server.probe import Answered, Logprobs, Probe
from mlxscore_server.row import RowScore
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


def self_check(scorer: BatchScorer, model: nn.Module, layout: LayoutChoice) -> wire.SelfCheck:
    """Set the scorer's layout and mask form to the best that is right; what was found.

    Raises StartupError where not even rows of equal length agree with the model's own answers.
    """
    probe = Probe(scorer, model)
    if scorer.numpy_kernels and (reason := _check_kernels(probe)):
        log.warning("numpy's kernels are not right for this model (%s): MLX's own are used", reason)
        scorer.use_numpy_kernels(False)
    with cpu_kernels.any_size():
        return _check_layouts(scorer, probe, layout)


def _check_kernels(probe: Probe) -> str | None:
    """What is wrong with numpy's kernels in this model's own call; None if nothing is."""
    row, own = probe.unequal[-1]
    try:
        with cpu_kernels.any_size():
            worst = float(np.abs(probe.logprobs(row) - own).mean())
    except Exception as error:
        return _raised(error)
    return None if worst <= _LIMITS[mx.float32] else f"a row differs by {worst:.2g} nats a token"


def _check_layouts(scorer: BatchScorer, probe: Probe, layout: LayoutChoice) -> wire.SelfCheck:
    found, noise = _check_padding(scorer, probe)
    if layout == "left-padded":
        return found
    padded, form = scorer.layout, scorer.forward.mask_form
    differences = _check_packed(scorer, probe, noise)
    if isinstance(differences, str):
        scorer.layout, scorer.forward.mask_form = padded, form
        log.info("not packed, %s rows: %s", padded, differences)
        return found.model_copy(update={"packed_reason": differences})
    largest, mean = _summary(differences)
    return found.model_copy(update={"layout": "packed", "max_error": largest, "mean_error": mean})


def _check_padding(scorer: BatchScorer, probe: Probe) -> tuple[wire.SelfCheck, float]:
    """What was found, and the mean difference of the worst row."""
    reason = "no way was tried"
    for _ in range(2):
        limit = _limit(scorer, probe)
        for layout, form in _ways():
            scorer.layout, scorer.forward.mask_form = layout, form
            padded = layout == "left-padded"
            differences = _differences(scorer, probe.unequal if padded else probe.equal)
            if isinstance(differences, str):
                reason = differences
            elif not (worst := _worst(differences)) <= limit:
                reason = f"a row in a {layout} batch differs from itself alone by {worst:.2g} nats a token"
            else:
                largest, mean = _summary(differences)
                found = wire.SelfCheck(
                    layout=layout,
                    padding="left-padded" if padded else "equal-length",
                    max_error=largest,
                    mean_error=mean,
                    reason=None if padded else reason,
                )
                return found, worst
        if not scorer.head.found:
            break
        log.warning("the output head's split does not hold for this model (%s): not used", reason)
        scorer.head.close()
    raise StartupError(
        f"this model's scores cannot be trusted, not even in equal-length rows: {reason}"
    )


def _check_packed(scorer: BatchScorer, probe: Probe, noise: float) -> list[Logprobs] | str:
    """|differences| of the packed layout from single rows, or why it is not right for this model.

    In half precision it may differ three times as much as the rows of the proven layout do (`noise`).

    Rows that share prefixes, that share nothing, beyond a layer's window; in one micro-batch, in
    many with what came before kept, and once more with all of it kept.
    """
    if not scorer.head.found:
        return "the model has no output head of its own"
    limit = _limit(scorer, probe)
    if scorer.head.dtype != mx.float32:
        limit = float(np.clip(3 * noise, limit, _MOST))
    scorer.layout = "packed"
    batch_tokens, kept_bytes = scorer.max_batch_tokens, scorer.kept.max_bytes
    chained = _CHAINED_TOKENS, max(kept_bytes, _PROBE_BYTES)
    found: list[Logprobs] = []
    try:
        for scorer.max_batch_tokens, scorer.kept.max_bytes in (batch_tokens, 0), chained, chained:
            differences = _differences(scorer, probe.sharing)
            if isinstance(differences, str):
                return differences
            if not (worst := _worst(differences)) <= limit:
                return f"a packed row differs from itself alone by {worst:.2g} nats a token"
            found += differences
    finally:
        scorer.max_batch_tokens, scorer.kept.max_bytes = batch_tokens, kept_bytes
        scorer.kept.clear()
    return found


def _ways() -> Iterator[tuple[Layout, MaskForm]]:
    for form in MASK_FORMS:
        yield "left-padded", form
    yield "equal-length", MASK_FORMS[0]


def _limit(scorer: BatchScorer, probe: Probe) -> float:
    """Four times what precision alone does to a batch without padding, within bounds.

    A batch, because half-precision kernels differ between one row and several (quantised ones most).
    """
    least = _LIMITS[scorer.head.dtype]
    if scorer.head.dtype == mx.float32:
        return least
    scorer.layout = "equal-length"
    differences = _differences(scorer, probe.equal)
    noise = 0.0 if isinstance(differences, str) else _worst(differences)
    return float(np.clip(4 * noise, least, _MOST))


def _differences(scorer: BatchScorer, answered: Answered) -> list[Logprobs] | str:
    """Each row's |differences| when the rows run as one window, or why they could not."""
    try:
        scores = scorer.score_rows([row for row, _ in answered])
    except Exception as error:
        return _raised(error)
    differences: list[Logprobs] = []
    for score, (_, own) in zip(scores, answered, strict=True):
        if not isinstance(score, RowScore):
            return "a score was not finite"
        differences.append(np.abs(score.logprobs.astype(np.float64) - own))
    return differences


def _worst(differences: list[Logprobs]) -> float:
    return float(np.max([row.mean() for row in differences]))  # NaN, if there is one


def _summary(differences: list[Logprobs]) -> tuple[float, float]:
    """The largest and the mean of all."""
    together = np.concatenate(differences)
    return float(together.max()), float(together.mean())


def _raised(error: Exception) -> str:
    return f"the model raised {type(error).__name__}: {error}".splitlines()[0]
