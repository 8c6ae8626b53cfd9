"""A model that is ready to score, as everything above the MLX code sees it. Knows no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlxscore_client import wire
from mlxscore_server.errors import MlxscoreError
from mlxscore_server.row import Row, RowScore
from mlxscore_server.stats import Stats
from mlxscore_server.tokens import Encoder


class Window(Protocol):
    """Rows that are scored together, in steps: micro-batches."""

    @property
    def num_steps(self) -> int: ...

    @property
    def computed(self) -> Sequence[int]:
        """For each row the tokens computed for it; what several share, the first pays for."""
        ...

    @property
    def cached(self) -> Sequence[int]:
        """For each row the tokens that were kept from earlier."""
        ...

    def tokens_of(self, step: int) -> int:
        """Tokens that a step computes."""
        ...

    def rows_of(self, step: int) -> Sequence[int]:
        """The rows that cannot be answered without a step."""
        ...

    def start(self, step: int) -> Any:
        """Begin with a step, in order; what to give to `finish`."""
        ...

    def finish(self, started: Any) -> Sequence[tuple[int, RowScore | MlxscoreError]]:
        """Wait for a step: the rows that are complete with it and their answers, an error for a row
        that has no finite score."""
        ...

    def close(self) -> None:
        """No further step will come."""
        ...


class Scorer(Protocol):
    """What the engine needs of a model. All of it is called on the MLX thread only."""

    @property
    def max_batch_tokens(self) -> int:
        """Tokens of one micro-batch, now."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether a step that was started runs by itself, so that the next can be started meanwhile."""
        ...

    @property
    def stats(self) -> Stats:
        """What it has done. Any thread may read it."""
        ...

    def plan(self, rows: Sequence[Row]) -> Window:
        """Cut rows into micro-batches that suit this model and device."""
        ...

    def free(self) -> None:
        """Drop all that is kept for later, since memory ran out or a step failed. No step is under way;
        windows that are open may only be closed any more."""
        ...

    def lighten(self, max_batch_tokens: int) -> None:
        """Memory ran out: make micro-batches smaller from now on, and keep less."""
        ...

    def close(self) -> None:
        """Give back what the thread holds."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A model that is ready, as the function that loads it returns it."""

    scorer: Scorer
    encoder: Encoder
    card: wire.ModelCard
