"""What is asked of rows of logits, and what was read off them: plain numpy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Wanted:
    """What to read off one chunk of logits."""

    rows: Ints
    """(P,) the logits row of each pair."""
    targets: Ints
    """(P,) the token of each pair; -1: the row's argmax, whichever that is."""
    ranks: bool
    top: int
    """How many best tokens to return for each logits row in `top_rows`."""
    top_rows: Ints
    """(T,) logits rows whose best tokens are wanted."""
    among: Ints | None = None
    """(n,) token ids whose probability together is wanted of each pair's row."""


@dataclass(frozen=True)
class Read:
    """What was read, in the order of `Wanted`."""

    targets: Ints
    """(P,) the token of each pair, the argmax where it was asked for."""
    logprobs: Floats
    """(P,) nats; not finite where the logits are not."""
    greedy: NDArray[np.bool_]
    """(P,) the target is the row's argmax, the lowest id on ties."""
    ranks: Ints | None
    """(P,) 1 + the number of strictly greater logits."""
    top_ids: Ints
    """(T, top), highest first, the lowest id first on ties."""
    top_logprobs: Floats
    """(T, top) nats."""
    among_logprobs: Floats | None = None
    """(P,) nats: of the ids `among` together, in each pair's row."""
