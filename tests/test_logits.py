"""Reading rows of logits: both ways against numpy in float64, ties, non-finite values."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxscore_server.logits import Reading, read_mlx, read_numpy
from mlxscore_server.reading import Wanted

WAYS = [read_numpy, read_mlx]
Reader = Callable[[mx.array, Wanted], Reading]


def wanted(rows: list[int], targets: list[int], top: int = 0, ranks: bool = True) -> Wanted:
    unique = np.unique(np.array(rows, np.int32))
    return Wanted(
        np.array(rows, np.int32),
        np.array(targets, np.int32),
        ranks,
        top,
        unique if top else unique[:0],
    )


@pytest.mark.parametrize("read", WAYS)
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(2, 1500), st.integers(0, 120), st.integers(0, 2**32 - 1))
def test_equals_float64(read: Reader, num_rows: int, vocab: int, top: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Coarse values: many ties.
    logits = (rng.integers(-40, 40, (num_rows, vocab)) / 4).astype(np.float32)
    rows = rng.integers(0, num_rows, 30).tolist()
    targets = rng.integers(0, vocab, 30).tolist()
    top = min(top, vocab)
    found = read(mx.array(logits), wanted(rows, targets, top))()
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    at = exact[rows, targets]
    assert np.abs(found.logprobs - at).max() < 1e-5
    assert found.greedy.tolist() == (logits.argmax(-1)[rows] == targets).tolist()
    assert found.ranks is not None
    strictly_greater = (logits[rows] > logits[rows, targets][:, None]).sum(-1)
    assert found.ranks.tolist() == (1 + strictly_greater).tolist()
    if top:
        unique = np.unique(rows)
        best = -np.sort(-exact[unique], axis=-1)[:, :top]
        assert np.abs(found.top_logprobs - best).max() < 1e-5
        values = np.take_along_axis(exact[unique], found.top_ids.astype(np.int64), -1)
        assert np.abs(values - best).max() < 1e-5
        assert all(len(set(ids)) == top for ids in found.top_ids.tolist())


@pytest.mark.parametrize("read", WAYS)
def test_a_tie_is_greedy_for_the_lowest_id_only(read: Reader) -> None:
    found = read(mx.array([[1.0, 3.0, 3.0, 2.0]]), wanted([0, 0, 0], [1, 2, 3], top=2))()
    assert found.greedy.tolist() == [True, False, False]
    assert found.ranks is not None
    assert found.ranks.tolist() == [1, 1, 3]
    assert found.top_ids.tolist() == [[1, 2]]


@pytest.mark.parametrize("read", WAYS)
@pytest.mark.parametrize(
    "logits",
    [
        [float("nan"), 1.0, 2.0],
        [float("inf"), 2.0, 3.0],
        [-float("inf")] * 3,
        [-float("inf"), 0.0, 1.0],
    ],
)
def test_what_is_not_finite_shows_as_not_finite(read: Reader, logits: list[float]) -> None:
    found = read(mx.array([logits, [0.0, 1.0, 2.0]]), wanted([0, 1], [0, 0]))()
    assert not np.isfinite(found.logprobs[0])
    assert np.isfinite(found.logprobs[1])


@pytest.mark.parametrize("read", WAYS)
def test_a_masked_entry_beside_the_target_is_no_harm(read: Reader) -> None:
    found = read(mx.array([[-float("inf"), 0.0, 1.0]]), wanted([0], [2]))()
    assert abs(found.logprobs[0] - -0.313262) < 1e-6


def test_a_long_row_is_summed_without_drift_on_the_cpu() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 256_000)).astype(np.float32)
    found = read_numpy(mx.array(logits), wanted([0, 1, 2], [5, 6, 7]))()
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    assert np.abs(found.logprobs - exact[[0, 1, 2], [5, 6, 7]]).max() < 2e-6


@pytest.mark.parametrize("read", WAYS)
def test_several_tokens_together(read: Reader) -> None:
    """The probability of a set of tokens, for pairs that share rows of logits, as in float64."""
    logits = np.random.default_rng(2).normal(size=(21, 300)).astype(np.float32) * 4
    rows, targets = [20, 0, 0, 7, 3] * 5, list(range(25))
    among = np.array([0, 5, 6, 299, 17], np.int32)
    asked = replace(wanted(rows, targets, top=2), among=among)
    found = read(mx.array(logits), asked)()
    exact = np.exp(logits.astype(np.float64))
    together = np.log(exact[:, among].sum(-1) / exact.sum(-1))
    assert found.among_logprobs is not None
    assert np.abs(found.among_logprobs - together[rows]).max() < 1e-5
    assert found.top_ids.shape == (4, 2)
    assert found.ranks is not None and len(found.ranks) == len(rows)
    assert read(mx.array(logits), wanted(rows, targets))().among_logprobs is None
