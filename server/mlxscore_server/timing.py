"""Where a request's time goes: its stages, noted where they happen. Knows no HTTP.

The request that is being answered is found through a context variable, which tasks inherit: what notes
a stage need not know for whom.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Stage = Literal["read", "tokenise", "queue", "compute", "respond"]
"""Read the body; parse it and turn text into ids; wait for the model; be scored; write and send."""

STAGES: tuple[Stage, ...] = ("read", "tokenise", "queue", "compute", "respond")


class Span(NamedTuple):
    """`begin` and `end` in seconds of `time.monotonic`."""

    stage: Stage
    begin: float
    end: float


@dataclass
class Timing:
    """One request. All times are of `time.monotonic`, in seconds."""

    began: float = field(default_factory=time.monotonic)
    spans: list[Span] = field(default_factory=list[Span])
    rows: int = 0
    tokens: int = 0
    """As asked for."""
    computed_tokens: int = 0
    cached_tokens: int = 0
    merges: bool = False
    """Whether a stage that comes again widens its span: for requests that are in a stage any number of
    times."""

    def note(self, span: Span) -> None:
        """A stage that is over."""
        if self.merges:
            for place, (stage, begin, end) in enumerate(self.spans):
                if stage == span.stage:
                    self.spans[place] = Span(stage, min(begin, span.begin), max(end, span.end))
                    return
        self.spans.append(span)

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.monotonic() - self.began

    def stages(self) -> dict[Stage, float]:
        """Seconds in each stage that it has been in, in their order."""
        found: dict[Stage, float] = {}
        for stage, begin, end in self.spans:
            found[stage] = found.get(stage, 0.0) + end - begin
        return found

    def header(self) -> str:
        """So far, for Server-Timing: milliseconds."""
        parts = [f"{stage};dur={1000 * took:.3f}" for stage, took in self.stages().items()]
        return ", ".join([*parts, f"total;dur={1000 * self.seconds:.3f}"])


_current: ContextVar[Timing | None] = ContextVar("timing", default=None)


def begin() -> Timing:
    """Time the request that is answered in this context from now on."""
    timing = Timing()
    _current.set(timing)
    return timing


def current() -> Timing | None:
    """The request that is answered in this context, if there is one."""
    return _current.get()


@contextmanager
def stage(name: Stage) -> Generator[None]:
    """What happens inside, however it ends, is this stage of the current request."""
    started = time.monotonic()
    try:
        yield
    finally:
        if (timing := _current.get()) is not None:
            timing.note(Span(name, started, time.monotonic()))
