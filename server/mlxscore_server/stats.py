"""What a scorer has done since it began to serve, and what it holds. Knows no MLX."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

_ROWS = (1, 4, 16, 64, 256, 1024, 4096)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144)


class Sizes:
    """How many things of which size there were. One thread notes, others may read."""

    def __init__(self, bounds: Sequence[int]) -> None:
        """`bounds`: what each class goes up to, ascending; what is larger has a class of its own."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def note(self, size: int) -> None:
        self.counts[bisect_left(self.bounds, size)] += 1
        self.sum += size

    def up_to(self) -> list[tuple[str, int]]:
        """For each bound, the last is "+Inf", how many are not larger."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


def _of_rows() -> Sizes:
    return Sizes(_ROWS)


def _of_tokens() -> Sizes:
    return Sizes(_TOKENS)


@dataclass
class Stats:
    """Written by the thread that scores; others may read it at any time."""

    windows: int = 0
    micro_batches: int = 0
    flat_tokens: int = 0
    """As rows were asked for."""
    computed_tokens: int = 0
    padded_tokens: int = 0
    """What the model was given, padding included."""
    cached_tokens: int = 0
    """What was kept from earlier windows, counted for each row."""
    cached_rows: int = 0
    """Rows that began with something kept."""
    planning_seconds: float = 0.0
    window_rows: Sizes = field(default_factory=_of_rows)
    window_tokens: Sizes = field(default_factory=_of_tokens)
    """As rows were asked for."""
    micro_batch_tokens: Sizes = field(default_factory=_of_tokens)
    """Computed ones."""

    kept_tokens: int = 0
    """The rest is noted when a window closes. Tokens whose keys and values are kept, ..."""
    kept_bytes: int = 0
    kept_bytes_limit: int = 0
    active_bytes: int = 0
    """MLX's memory: what arrays hold, ..."""
    peak_bytes: int = 0
    """... the most that they have held, ..."""
    cache_bytes: int = 0
    """... and freed buffers that it keeps for reuse."""
