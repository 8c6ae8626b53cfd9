"""A model that is ready to score, as everything above the MLX code sees it. Knows no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlxscore_client import wire
from mlxscore_server.errors import MlxscoreError
from mlxscore_server.plan import MicroBatch
from mlxscore_server.row import Row, RowScore
from mlxscore_server.tokens import Encoder


class Scorer(Protocol):
    """What the engine needs of a model. All of it is called on the MLX thread only."""

    @property
    def max_batch_tokens(self) -> int:
        """Padded tokens of one micro-batch."""
        ...

    def plan(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """Cut rows into micro-batches that suit this model and device."""
        ...

    def score(self, batch: MicroBatch) -> list[RowScore | MlxscoreError]:
        """One answer a row, in order; an error for a row that has no finite score."""
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
