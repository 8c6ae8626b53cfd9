"""The MLX thread's loop, whatever happens between its steps: callers leave or come, the model fails."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_server import runner
from mlxscore_server.errors import NonFiniteLogits, ScoringFailed
from mlxscore_server.queue import Entry, Job, ScoreQueue
from mlxscore_server.row import Row, RowScore
from mlxscore_server.runner import LEAST_BATCH_TOKENS, WINDOW_BATCHES, Runner

TOKENS = 4
"""Of each row. A window takes `4 * max_batch_tokens`."""


class Queue(ScoreQueue):
    """Waits for nobody: where nothing could come any more, to wait would be for ever."""

    def take(self, max_tokens: int, *, wait: bool = True) -> list[Entry] | None:
        assert self.tokens or not wait or self.closed, "somebody is forgotten"
        return super().take(max_tokens, wait=wait)

    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


@dataclass
class Script:
    """What happens at the n-th start or finish of a step."""

    leaves: dict[int, int]
    """Who leaves, by place among all jobs."""
    comes: dict[int, int]
    """Who comes, with so many rows."""
    fails: set[int]
    overlaps: bool
    max_batch_tokens: int
    computed: int = TOKENS
    """Of each row; the others are kept."""
    faults: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """What a job's row does whenever it runs: "start" and "finish" raise, "memory" runs out there,
    "nan" is no number, and "leak" makes all that run with it none either."""
    rows_a_step: int = 2
    memory_tokens: int = 10**6
    """More in one step do not fit."""
    queue: Queue = field(default_factory=lambda: Queue(10**6))
    jobs: list[Job] = field(default_factory=list[Job])
    done: list[Job] = field(default_factory=list[Job])
    windows: list["ScriptedWindow"] = field(default_factory=list["ScriptedWindow"])
    clock: int = 0

    def put(self, num_rows: int) -> None:
        """A job whose rows say whose they are, and which."""
        rows = [Row(np.array([len(self.jobs), i, 0, 0, 0], np.int32), 1) for i in range(num_rows)]
        self.jobs.append(Job(rows, self.done.append))
        assert self.queue.put(self.jobs[-1])

    def tick(self) -> None:
        now, self.clock = self.clock, self.clock + 1
        if now in self.comes and not self.queue.closed:
            self.put(self.comes[now])
        if now in self.leaves and self.leaves[now] < len(self.jobs):
            self.queue.discard(self.jobs[self.leaves[now]])
        if now in self.fails:
            raise RuntimeError("the model failed")

    def stop(self) -> bool:
        """Asked before each turn of the loop: no more will come once all are served."""
        if all(not job.wanted for job in self.jobs) and not self.queue.tokens:
            self.queue.close()
        return False

    def fault_of(self, row: Row) -> str | None:
        job, index = row.ids[:2].tolist()
        return self.faults.get((job, index))

    # What the runner needs of a model.

    def plan(self, rows: Sequence[Row]) -> "ScriptedWindow":
        self.windows.append(ScriptedWindow(self, rows))
        return self.windows[-1]

    def free(self) -> None:
        for window in self.windows:
            assert window.closed or not window.under_way
            window.void = True

    def lighten(self, max_batch_tokens: int) -> None:
        assert LEAST_BATCH_TOKENS <= max_batch_tokens < self.max_batch_tokens
        self.max_batch_tokens = max_batch_tokens

    def close(self) -> None:
        pass


class ScriptedWindow:
    """So many rows a step, no more tokens than a micro-batch has; holds the runner to what a window may
    be asked."""

    def __init__(self, script: Script, rows: Sequence[Row]) -> None:
        self._script, self._rows = script, rows
        self._per_step = max(1, min(script.rows_a_step, script.max_batch_tokens // TOKENS))
        self.num_steps = -(-len(rows) // self._per_step)
        self.computed, self.cached = [script.computed] * len(rows), [0] * len(rows)
        self.num_rows = len(rows)
        self.started = self.landed = self.closed = 0
        self.void = False
        self.under_way = 0

    def tokens_of(self, step: int) -> int:
        return self._script.computed * len(self.rows_of(step))

    def rows_of(self, step: int) -> list[int]:
        assert 0 <= step < self.num_steps
        first = self._per_step * step
        return list(range(first, min(first + self._per_step, len(self._rows))))

    def start(self, step: int) -> int:
        assert not self.closed and not self.void
        assert step == self.started < self.num_steps
        self.started += 1
        self._script.tick()
        self._raise_if("start", step)
        if "memory" in self._faults(step) or self.tokens_of(step) > self._script.memory_tokens:
            raise MemoryError
        self.under_way += 1
        return step

    def finish(self, started: int) -> list[tuple[int, Any]]:
        assert not self.closed and not self.void
        assert self.landed <= started < self.started
        self.landed = started + 1
        self.under_way -= 1
        self._script.tick()
        self._raise_if("finish", started)
        leaks = "leak" in self._faults(started)
        return [
            (i, NonFiniteLogits("NaN"))
            if leaks or self._script.fault_of(self._rows[i]) == "nan"
            else (i, score_of(self._rows[i]))
            for i in self.rows_of(started)
        ]

    def _faults(self, step: int) -> set[str | None]:
        return {self._script.fault_of(self._rows[i]) for i in self.rows_of(step)}

    def _raise_if(self, fault: str, step: int) -> None:
        if fault in self._faults(step):
            raise RuntimeError(f"{fault} failed")

    def close(self) -> None:
        self.closed += 1


def score_of(row: Row) -> RowScore:
    """A score that says whose it is."""
    return RowScore(np.array(row.ids[:2], np.float32), False)


TIMES = st.integers(0, 30)


FAULTS = st.sampled_from(["start", "finish", "memory", "nan", "leak"])


@given(
    first=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    leaves=st.dictionaries(TIMES, st.integers(0, 8), max_size=6),
    comes=st.dictionaries(TIMES, st.integers(1, 5), max_size=4),
    fails=st.sets(TIMES, max_size=3),
    faults=st.dictionaries(st.tuples(st.integers(0, 8), st.integers(0, 6)), FAULTS, max_size=4),
    overlaps=st.booleans(),
    max_batch_tokens=st.sampled_from([2, 8, 40]),
    computed=st.integers(0, TOKENS),
)
def test_whatever_happens_between_steps(
    first: list[int],
    leaves: dict[int, int],
    comes: dict[int, int],
    fails: set[int],
    faults: dict[tuple[int, int], str],
    overlaps: bool,
    max_batch_tokens: int,
    computed: int,
) -> None:
    script = Script(leaves, comes, fails, overlaps, max_batch_tokens, computed, faults)
    for num_rows in first:
        script.put(num_rows)
    Runner(script.queue, script, script.stop).run()
    assert len(script.done) == len(set(map(id, script.done)))
    for place, job in enumerate(script.jobs):
        if job.cancelled:
            continue
        assert job.finished, f"job {place} waits for ever"
        if job.error is not None:
            # A row is to blame, and the right one; or the model failed as such while it ran alone.
            assert isinstance(job.error, ScoringFailed)
            assert job.error.row is not None
            assert fails or (place, job.error.row) in faults
            assert isinstance(job.error, NonFiniteLogits) <= (
                faults.get((place, job.error.row)) in ("nan", "leak")
            )
            continue
        assert not any((place, i) in faults for i in range(len(job.rows)))
        found = [score.logprobs.tolist() for score in job.scores if score is not None]
        assert found == [[place, i] for i in range(len(job.rows))]
        assert job.computed_tokens == computed * len(job.rows)
    for window in script.windows:
        assert window.closed == 1


@pytest.mark.parametrize("fault", ["start", "finish", "memory", "nan", "leak"])
@pytest.mark.parametrize("num_bad", [1, 3])
def test_a_bad_row_costs_a_few_passes(fault: str, num_bad: int) -> None:
    faults = {(place, 0): fault for place in range(0, 60, 60 // num_bad)}
    script = Script({}, {}, set(), False, 64 * TOKENS, faults=faults, rows_a_step=64)
    for _ in range(64):
        script.put(1)
    Runner(script.queue, script, script.stop).run()
    bad = [place for place, job in enumerate(script.jobs) if job.error is not None]
    assert bad == [place for place, _ in faults]
    # 64 halves to 1 in six: two windows each time; memory may be short of half as much first.
    assert len(script.windows) <= 1 + 2 * 6 * num_bad + (fault == "memory")


@pytest.mark.parametrize("num_jobs", [1, 40])
def test_a_model_that_always_fails_ends(num_jobs: int) -> None:
    faults = {(job, i): "start" for job in range(40) for i in range(40)}
    script = Script({}, {}, set(), True, 40 * TOKENS, faults=faults, rows_a_step=40)
    for _ in range(num_jobs):
        script.put(40 // num_jobs)
    Runner(script.queue, script, script.stop).run()
    assert all(isinstance(job.error, ScoringFailed) for job in script.jobs)
    # Once a job has its error, the rest of its rows are not tried.
    assert len(script.windows) <= (2 * 40 if num_jobs == 40 else 8)


def test_where_memory_runs_out_micro_batches_become_smaller_and_stay_so() -> None:
    most = 4 * LEAST_BATCH_TOKENS
    script = Script({}, {}, set(), False, most, rows_a_step=most // TOKENS)
    script.memory_tokens = 2 * LEAST_BATCH_TOKENS
    for _ in range(most // TOKENS):
        script.put(1)
    Runner(script.queue, script, script.stop).run()
    assert all(job.error is None for job in script.jobs)
    assert script.max_batch_tokens == 2 * LEAST_BATCH_TOKENS
    # However little there is, they do not become smaller than that: rows are halved instead.
    script = Script({}, {}, set(), False, most, rows_a_step=most // TOKENS)
    script.memory_tokens = TOKENS
    for _ in range(most // TOKENS):
        script.put(1)
    Runner(script.queue, script, script.stop).run()
    assert all(job.error is None for job in script.jobs)
    assert script.max_batch_tokens == LEAST_BATCH_TOKENS
    # Not even one row fits: it is refused, and says why.
    script = Script({}, {}, set(), False, most, rows_a_step=2)
    script.memory_tokens = TOKENS - 1
    script.put(1)
    Runner(script.queue, script, script.stop).run()
    assert script.jobs[0].error is not None
    assert getattr(script.jobs[0].error, "code", None) == "out_of_memory"
    assert script.max_batch_tokens == most


@pytest.mark.parametrize(
    ("computed", "rows_of_windows"),
    [
        (TOKENS, [2] * 100),  # two rows are a window
        (3, [2] * 100),  # most of it would be full
        (1, [8] * 25),  # as many as are a window's tokens
        (0, [32] * 6 + [8]),  # nothing is computed: as many as may be planned together
    ],
)
def test_a_window_holds_what_it_computes(
    computed: int, rows_of_windows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_MOST_TOKENS", 32 * TOKENS)
    script = Script({}, {}, set(), False, TOKENS * 2 // WINDOW_BATCHES, computed)
    for _ in range(20):
        script.put(10)
    Runner(script.queue, script, script.stop).run()
    assert all(job.finished and job.error is None for job in script.jobs)
    run = [window for window in script.windows if window.started]
    assert [window.num_rows for window in run] == rows_of_windows
    assert all(window.closed == 1 for window in script.windows)
