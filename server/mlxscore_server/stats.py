"""What a scorer has done since it was made, in tokens. Knows no MLX."""

from dataclasses import dataclass


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
    planning_seconds: float = 0.0
