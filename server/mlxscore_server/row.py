"""A row: token ids, which of them are scored, and the answer. Knows no threads, no MLX."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Row:
    """One context + continuation as ids `t[0..n)`.

    `t[start..n)` are scored, each given all that comes before it; `1 <= start < n`.
    The model reads `t[0..n-1)`: the last id is only ever a target. With `next_token` it reads that
    too, and the token that it finds most likely after it is scored as one more; `start` may be n then.
    """

    ids: Ids
    """(n,) int32."""
    start: int
    top_logprobs: int = 0
    """How many of the most likely tokens to return per scored position."""
    ranks: bool = False
    """Whether the answer holds ranks."""
    next_token: bool = False
    """Whether the model's first choice after the last id is scored too."""
    among: Ids | None = None
    """Token ids whose probability together is asked for at each scored position; one array a model."""
    salt: bytes = b""
    """Rows share prefixes only with rows of the same salt."""

    def __post_init__(self) -> None:
        if not 1 <= self.start < len(self.ids) + self.next_token:
            raise ValueError(
                f"start must lie in [1, {len(self.ids) + self.next_token}), got {self.start}: "
                "a score needs something before it"
            )

    @property
    def inputs(self) -> Ids:
        """What the model reads, (n - 1,) int32, or (n,)."""
        return self.ids if self.next_token else self.ids[:-1]

    @property
    def targets(self) -> Ids:
        """What is scored, (k,) int32; -1 stands for the model's own first choice."""
        given = self.ids[self.start :]
        return np.append(given, np.int32(-1)) if self.next_token else given

    @property
    def num_inputs(self) -> int:
        return len(self.ids) - 1 + self.next_token

    @property
    def num_targets(self) -> int:
        return len(self.ids) - self.start + self.next_token

    @property
    def key(self) -> bytes:
        """Equal exactly where the inputs are: such rows, of the same salt, are computed once."""
        return self.inputs.tobytes()


@dataclass(frozen=True, eq=False)
class RowScore:
    """The answer to a row, plain numpy: nothing lazy leaves the MLX thread."""

    logprobs: NDArray[np.float32]
    """(k,) nats, one per scored token."""
    greedy: NDArray[np.bool_]
    """(k,) whether the token is the argmax (the lowest id on ties)."""
    ranks: NDArray[np.int32] | None = None
    """(k,) 1 + the number of strictly greater logits; None unless asked for."""
    top_ids: NDArray[np.int32] | None = None
    """(k, top_logprobs) highest first; None unless asked for."""
    top_logprobs: NDArray[np.float32] | None = None
    """(k, top_logprobs) nats."""
    among_logprobs: NDArray[np.float32] | None = None
    """(k,) nats, of all ids `among` together; None unless asked for."""
    next_id: int | None = None
    """The model's first choice after the row, whose numbers stand last; None unless asked for."""

    @property
    def loglikelihood(self) -> float:
        """Sum of the logprobs, float64, nats."""
        return float(self.logprobs.sum(dtype=np.float64))

    @property
    def is_greedy(self) -> bool:
        return bool(self.greedy.all())
