"""What came of everything that was sent."""

from collections import Counter
from dataclasses import dataclass, field

from soaking.asks import Ask, Numbers

PERCENTILES = (50, 90, 99, 99.9)


@dataclass
class Tally:
    """Counts; `bad` says whether the server did what it must never do."""

    tolerance: float
    """Largest difference of a number from the stored one, for each token that was read."""
    sent: int = 0
    """HTTP requests, those sent again too."""
    bytes_sent: int = 0
    """Of bodies."""
    calls: int = 0
    answered: int = 0
    wrong: int = 0
    swapped: int = 0
    lost: int = 0
    gave_up: int = 0
    left: int = 0
    bad_bodies: int = 0
    raised: int = 0
    by_kind: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[str] = field(default_factory=Counter[str])
    latencies: list[float] = field(default_factory=list[float])
    examples: list[str] = field(default_factory=list[str])
    _owners: dict[Numbers, str] = field(default_factory=dict[Numbers, str])

    @property
    def bad(self) -> bool:
        return bool(self.wrong or self.lost or self.swapped)

    def expect(self, ask: Ask, name: str, truth: Numbers) -> None:
        """Remember whose an answer is."""
        self._owners[_rounded(truth)] = name

    def answer(self, ask: Ask, name: str, truth: Numbers, got: Numbers, seconds: float) -> None:
        """Compare an answer with the stored one."""
        self.answered += 1
        self.by_kind[ask.kind] += 1
        self.latencies.append(seconds)
        most = self.tolerance * max(1, ask.tokens)
        if len(got) == len(truth) and all(
            abs(a - b) <= most for a, b in zip(got, truth, strict=True)
        ):
            return
        owner = self._owners.get(_rounded(got))
        if owner is not None and owner != name:
            self.swapped += 1
            self.example(f"{name} has the answer of {owner}")
        else:
            self.wrong += 1
            self.example(f"{name}: {got[:4]} should be {truth[:4]}")

    def lose(self, name: str, error: object) -> None:
        """A call that has no answer, or one that is none of its own doing."""
        self.lost += 1
        self.example(f"{name}: {type(error).__name__}: {error}")

    def example(self, text: str) -> None:
        if len(self.examples) < 20:
            self.examples.append(text[:300])


def _rounded(numbers: Numbers) -> Numbers:
    return tuple(round(number, 2) for number in numbers)
