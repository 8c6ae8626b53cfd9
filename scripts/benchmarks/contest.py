"""The contestants, and the contest: each load by each of them in turn, best of several."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from benchmarks.loads import LONG, Load, echo
from benchmarks.machine import timed
from benchmarks.models import random_model
from benchmarks.shapes import SMOLLM2
from mlxscore_server.device import Device
from mlxscore_server.padding import PaddedBatch, right_justified, stand_ins
from mlxscore_server.row import Row
from mlxscore_server.scoring import BatchScorer

Logprobs = dict[int, NDArray[np.float32]]
"""By the row's identity: contestants answer in an order of their own."""


@dataclass
class Result:
    """How one load went. Tokens a second are `flat_tokens / seconds[...]`."""

    name: str
    what: str
    flat_tokens: int
    computed_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    peak_bytes: dict[str, int] = field(default_factory=dict[str, int])
    of_choices: bool = False
    """Whether rows have equal inputs, so that the core computes fewer tokens than it is asked for."""
    difference: float = 0.0
    """Largest difference of a logprob between core and naive, nats."""


@dataclass
class Memory:
    """Peak beyond the weights of 64 rows x 512 with a vocabulary of 49,152."""

    layers: int
    peak_bytes: dict[str, int]
    """By how many positions of each row are wanted."""
    naive_logits_bytes: int


class Field:
    """All contestants with one model."""

    def __init__(self, model: nn.Module, device: Device, url: str | None = None) -> None:
        self._model: Any = model
        self._device = device
        self._url = url
        self._scorer = BatchScorer(model, device)
        self._template = make_prompt_cache(model)
        self._budget = self._scorer.max_batch_tokens
        self.vocab_size = self._scorer.head.num_embeddings

    def run(self, load: Load, repeats: int) -> Result:
        result = Result(load.name, load.what, load.flat_tokens, of_choices=bool(load.of_one))
        result.computed_tokens = sum(b.computed_tokens for b in self._scorer.plan(load.rows))
        turns: dict[str, tuple[Callable[[list[Row]], object], list[Row]]] = {
            "own": (self.own, load.rows),
            "core": (self.core, load.rows),
            "naive": (self.naive, load.rows),
        }
        if load.of_one:
            turns["core, 1 choice"] = (self.core, load.of_one)
        if self._url is not None:
            from benchmarks.served import score

            turns["served"] = (lambda rows, url=self._url: score(url, rows), load.rows)
        # A GPU compiles for each shape, so it must see all of them; a CPU has nothing to compile.
        warm = 2 if self._device.name == "cpu" else len(load.rows)
        answers: dict[str, object] = {}
        for contestant, rows in turns.values():
            contestant(rows[:warm])
        for _ in range(repeats):
            for name, (contestant, rows) in turns.items():
                answers[name], seconds, peak = _measured(contestant, rows)
                result.seconds[name] = min(seconds, result.seconds.get(name, seconds))
                if name != "served":
                    result.peak_bytes[name] = max(peak, result.peak_bytes.get(name, 0))
        result.difference = _difference(answers["core"], answers["naive"])
        return result

    def own(self, rows: Sequence[Row]) -> None:
        """The model's own body, unpadded: one length at a time, as many rows as the budget allows."""
        by_length = sorted(rows, key=lambda row: row.num_inputs)
        for length, group in groupby(by_length, key=lambda row: row.num_inputs):
            for some in _batches(list(group), max(1, self._budget // length)):
                tokens, _ = right_justified(some, length)
                mx.eval(self._model.model(mx.array(tokens)))

    def core(self, rows: Sequence[Row]) -> Logprobs:
        found: Logprobs = {}
        for batch in self._scorer.plan(rows):
            for row, score in zip(batch.rows, self._scorer.score(batch), strict=True):
                if isinstance(score, Exception):
                    raise score
                found[id(row)] = score.logprobs
        return found

    def naive(self, rows: Sequence[Row]) -> Logprobs:
        found: Logprobs = {}
        dtype = self._scorer.head.dtype
        for some in _batches(rows, max(1, self._budget // max(r.num_inputs for r in rows))):
            length = max(row.num_inputs for row in some)
            tokens, left_padding = right_justified(some, length)
            targets = np.concatenate([tokens[:, 1:], [[row.ids[-1]] for row in some]], axis=1)
            cache = stand_ins(
                self._template, PaddedBatch(left_padding, length, dtype, form="boolean")
            )
            logits = self._model(mx.array(tokens), cache=cache).astype(mx.float32)
            logprobs = nn.log_softmax(logits, axis=-1)
            picked = mx.take_along_axis(logprobs, mx.array(targets)[:, :, None], axis=-1)
            values = np.array(picked[:, :, 0])
            for row, line in zip(some, values, strict=True):
                found[id(row)] = line[-row.num_targets :]
        return found


def memory_of_64_x_512(device: Device) -> Memory:
    """With the default model's widths; on a CPU with two of its layers, which need as much at a time."""
    layers = 2 if device.name == "cpu" else SMOLLM2["num_hidden_layers"]
    dtype = mx.float32 if device.name == "cpu" else mx.bfloat16
    model = random_model(SMOLLM2 | {"num_hidden_layers": layers}, dtype)
    contestants = Field(model, device)
    vocab = contestants.vocab_size
    peaks: dict[str, int] = {}
    for wanted in (32, LONG):
        _, _, peaks[str(wanted)] = _measured(contestants.core, echo(64, wanted, vocab))
    return Memory(layers, peaks, 64 * LONG * vocab * 4)


def _measured(
    contestant: Callable[[list[Row]], object], rows: list[Row]
) -> tuple[object, float, int]:
    """The answer, seconds, and MLX's peak memory beyond what was held before."""
    rows = [replace(row) for row in rows]  # a row remembers its key: each turn must make it anew
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    answers: list[Any] = []
    seconds = timed(lambda: answers.append(contestant(rows)))
    answer = answers[0]
    if isinstance(answer, dict):
        answer = [answer[id(row)] for row in rows]
    return answer, seconds, mx.get_peak_memory() - before


def _difference(core: Any, naive: Any) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(core, naive, strict=True))


def _batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for i in range(0, len(rows), size):
        yield rows[i : i + size]
