"""What a watchdog sees of the MLX thread. Written by that thread, read by another. Knows no time."""


class Pulse:
    """Beats with each window that is planned, each step that is started, and each that is done."""

    def __init__(self) -> None:
        self.beats = 0
        self.best_rate = 0.0
        """Tokens a second of the quickest step so far; 0 before the first."""
        self._tokens = 0

    @property
    def expected_seconds(self) -> float:
        """How long the step that was started last should take; 0 where nothing is known yet."""
        return self._tokens / self.best_rate if self.best_rate else 0.0

    def beat(self) -> None:
        self.beats += 1

    def start(self, tokens: int) -> None:
        """A step of so many tokens begins."""
        self._tokens = tokens
        self.beats += 1

    def land(self, tokens_per_second: float) -> None:
        """A step is done."""
        self.best_rate = max(self.best_rate, tokens_per_second)
        self.beats += 1
