"""The masked gather on arrays: known answers, ragged targets, errors."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_server.gather import (
    completion_mask,
    gather_targets,
    keep_completions,
    last_positions,
    target_logprobs,
)

BATCH = mx.arange(24).reshape(2, 4, 3).astype(mx.float32)


@pytest.mark.parametrize(
    ("targets", "sums"),
    [
        ([[1, 2], [2, 0]], [18, 41]),
        ([[1, 2, 0], [2, 1, 0]], [21, 57]),
        ([[2], [2, 0]], [11, 41]),  # ragged: nothing is added for the shorter row
        ([[], [0]], [0, 21]),
        ([[0, 0, 0, 0], [1]], [0 + 3 + 6 + 9, 22]),
    ],
)
def test_known_sums(targets: list[list[int]], sums: list[float]) -> None:
    found = gather_targets(BATCH, targets)
    assert found.sums.tolist() == sums
    assert found.values.sum(axis=-1).tolist() == sums


def test_values_and_mask_are_right_justified() -> None:
    found = gather_targets(BATCH, [[1, 2], [0]])
    assert found.values.tolist() == [[0, 0, 7, 11], [0, 0, 0, 21]]
    assert found.mask.tolist() == [[False, False, True, True], [False, False, False, True]]


def test_completions_are_the_last_positions() -> None:
    rows, mask = keep_completions(BATCH, [1, 3], [5, 4])
    assert mask.astype(mx.int32).tolist() == [[1, 1, 1, 1], [0, 0, 0, 1]]
    assert rows.tolist() == [*BATCH[0].tolist(), BATCH[1, 3].tolist()]


@pytest.mark.parametrize(
    ("prompt_lengths", "lengths"),
    [([1, 3], [6, 4]), ([5, 3], [4, 4]), ([1], [5, 4])],
)
def test_lengths_that_do_not_fit(prompt_lengths: list[int], lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"positions|lengths"):
        completion_mask(prompt_lengths, lengths, 4)


def test_the_error_names_the_row_and_both_numbers() -> None:
    with pytest.raises(ValueError, match="row 1 wants 5 of 4 positions"):
        keep_completions(BATCH, [1, 1], [5, 6])


@pytest.mark.parametrize(
    "targets", [[[1]], [[0, 0, 0, 0, 0], [1]], [[3], [1]], [[-1], [1]], [[2**40], [1]]]
)
def test_targets_that_do_not_fit(targets: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"rows|positions|vocabulary"):
        gather_targets(BATCH, targets)


def test_what_is_not_a_target_does_not_reach_the_sum() -> None:
    scores = mx.where(mx.arange(4)[None, :, None] < 2, mx.array(float("nan")), BATCH)
    assert gather_targets(scores, [[1, 2], [2, 0]]).sums.tolist() == [18, 41]


def test_half_precision_is_summed_in_float32() -> None:
    ones = mx.ones((1, 4096, 2), mx.bfloat16)
    found = gather_targets(ones, [[0] * 4096])
    assert found.sums.tolist() == [4096.0]


@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 300), st.integers(0, 2**32 - 1))
def test_logprobs_equal_a_float64_log_softmax(
    rows: int, length: int, vocab: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(rows, length, vocab)) * 5).astype(np.float32)
    targets = [rng.integers(0, vocab, rng.integers(0, length + 1)).tolist() for _ in range(rows)]
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    found = target_logprobs(mx.array(logits), targets)
    for b, row in enumerate(targets):
        start = length - len(row)
        wanted = [exact[b, start + i, t] for i, t in enumerate(row)]
        assert np.allclose(np.array(found.values)[b, start:], wanted, atol=2e-5)
        assert abs(found.sums[b].item() - sum(wanted)) < 1e-4


def test_a_long_vocabulary_is_summed_without_drift() -> None:
    """MLX's CPU log-sum-exp is up to 3e-4 off over 256,000 entries, always to one side."""
    logits = np.random.default_rng(0).normal(size=(1, 4, 256_000)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    found = target_logprobs(mx.array(logits), [[5, 6, 7, 8]])
    wanted = exact[0, np.arange(4), [5, 6, 7, 8]]
    assert np.abs(np.array(found.values)[0] - wanted).max() < 5e-6


def test_no_positions_at_all() -> None:
    assert last_positions([0, 0], 3).sum() == 0
    assert last_positions([], 3).shape == (0, 3)
