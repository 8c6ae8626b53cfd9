"""The contest: a load by each contestant in turn, several times."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.field import OURS, Field, Turn
from benchmarks.loads import Load
from benchmarks.result import Result, Times
from benchmarks.rows_file import Scores

_REPEATS_OF_OTHERS = 3
# Shorter passes run twice and the second counts: after other processes had the device, the first has
# to get its memory again.
_SETTLE_SECONDS = 0.5


@dataclass
class Contest:
    field: Field
    contestants: tuple[str, ...]
    repeats: int
    enough_seconds: float
    """A contestant whose passes took this long together has no more of them."""
    keep: Callable[[Result], None]
    """Called with what is found so far."""

    def run(self, load: Load) -> None:
        result = Result(load.name, load.what, len(load.rows), load.flat_tokens, load.scored_tokens)
        self.keep(result)
        ours = self._first_of_all(load, result)
        turns = self.field.turns(load, self.contestants, result)
        for name in list(turns):
            self._try(name, turns, result, lambda n=name: self._time_first(n, turns, result, ours))
            self.keep(result)
        for repeat in range(self.repeats):
            names = list(turns)
            shift = repeat % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                if repeat < _REPEATS_OF_OTHERS or name in OURS[:2]:
                    self._try(name, turns, result, lambda n=name: self._time(n, turns, result))
        self.keep(result)

    def _try(
        self, name: str, turns: dict[str, Turn], result: Result, what: Callable[[], None]
    ) -> None:
        """A contestant that fails has no further turns in this load."""
        try:
            what()
        except Exception as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            result.failures[name] = said[0][:300]
            turns.pop(name, None)

    def _first_of_all(self, load: Load, result: Result) -> Scores:
        """Ours for the first time: what it computes, and the scores to compare with."""
        first = self.field.turn_of_ours("cold", load.rows)()
        counts = self.field.ours.counts
        result.computed_tokens, result.padded_tokens = counts.computed_tokens, counts.padded_tokens
        result.micro_batches = counts.micro_batches
        result.planning_seconds = counts.planning_seconds
        wanted = min(load.scored_tokens, counts.computed_tokens)
        result.flops = self.field.weights.flops(counts.computed_tokens, wanted)
        result.times["cold"] = Times(first.seconds, [first.seconds], first.peak_bytes)
        assert first.scores is not None, "ours always has scores"
        return first.scores

    def _time_first(self, name: str, turns: dict[str, Turn], result: Result, ours: Scores) -> None:
        if name not in result.times:  # that of "cold" is over
            found = turns[name]()
            times = Times(found.seconds, [found.seconds], found.peak_bytes)
            if found.scores is not None:
                times.difference = _difference(found.scores, ours)
            result.times[name] = times
        self.field.release(name)

    def _time(self, name: str, turns: dict[str, Turn], result: Result) -> None:
        times, turn = result.times[name], turns[name]
        if len(times.seconds) == 1 and times.seconds[0] == times.first:
            if times.first > self.enough_seconds:
                return
            times.seconds.clear()
        elif sum(times.seconds) > self.enough_seconds:
            return
        found = turn()
        if found.seconds < _SETTLE_SECONDS:
            found = turn()
        times.seconds.append(found.seconds)
        if name == "cold":
            result.planning_seconds = self.field.ours.counts.planning_seconds
        if found.peak_bytes is not None:
            times.peak_bytes = max(times.peak_bytes or 0, found.peak_bytes)
        self.field.release(name)


def _difference(theirs: Scores, ours: Scores) -> float:
    """Largest difference, nats a token; sums are compared where a contestant gives only those."""

    def of_row(a: Any, b: Any) -> float:
        if len(a) == len(b):
            return float(np.abs(a - b).max())
        return abs(float(a.sum(dtype=np.float64) - b.sum(dtype=np.float64))) / len(b)

    return max(of_row(a, b) for a, b in zip(theirs, ours, strict=True))
