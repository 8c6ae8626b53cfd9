"""A window of entries that is being scored, and which of its rows are in doubt. Knows no MLX, no time."""

from collections.abc import Sequence
from dataclasses import replace

from mlxscore_server.queue import Entry, Job
from mlxscore_server.resident import Scorer

_ALONE = b"\xff"
"""No text begins so in UTF-8, hence no caller's salt."""


class Turn:
    """A window with its place in it. `again`: of rows that have failed together with others."""

    def __init__(self, scorer: Scorer, entries: Sequence[Entry], *, again: bool = False) -> None:
        self.entries = entries
        self.again = again
        rows = [entry.row for entry in entries]
        if again and self.alone:
            # It goes on from nothing that others left behind: that may be what made it fail.
            rows = [replace(rows[0], salt=_ALONE + rows[0].salt)]
        self.window = scorer.plan(rows)
        self.computed, self.cached = self.window.computed, self.window.cached
        self.next_step = 0
        self.in_flight = 0
        self.unanswered = set(range(len(entries)))
        self.doubtful: set[int] = set()
        """Of the unanswered, those that failed, or were computed together with what failed."""
        self.rows_of_job: dict[Job, int] = {}
        for entry in entries:
            self.rows_of_job[entry.job] = self.rows_of_job.get(entry.job, 0) + 1

    @property
    def left(self) -> bool:
        """Whether some step has not been started."""
        return self.next_step < self.window.num_steps

    @property
    def spoiled(self) -> bool:
        """Whether someone has left, or got an error, whose rows are still to come."""
        return any(not job.wanted for job in self.rows_of_job)

    @property
    def alone(self) -> bool:
        """Whether there is but one row."""
        return len(self.entries) == 1

    @property
    def to_blame(self) -> bool:
        """Whether what goes wrong can only be the one row's own fault."""
        return self.alone and (self.again or not self.cached[0])

    def answered(self, index: int) -> Entry:
        """Note that a row has its answer; whose row it is."""
        entry = self.entries[index]
        self.unanswered.discard(index)
        self.rows_of_job[entry.job] -= 1
        if not self.rows_of_job[entry.job]:
            del self.rows_of_job[entry.job]
        return entry

    def doubt(self, step: int) -> None:
        """A step failed: no row that goes through it has an answer."""
        self.doubtful |= self.unanswered.intersection(self.window.rows_of(step))

    def wanted(self, *, doubtful: bool) -> list[Entry]:
        """What is unanswered and waited for: the doubtful, or the others."""
        found = self.doubtful if doubtful else self.unanswered - self.doubtful
        entries = [self.entries[i] for i in sorted(found)]
        return [entry for entry in entries if entry.job.wanted]
