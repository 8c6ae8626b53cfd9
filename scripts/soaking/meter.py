"""The server's memory and open descriptors over time, from /proc (Linux)."""

import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from soaking.process import Supervisor

_LEAST_SECONDS = 20  # a shorter life tells nothing
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    seconds: float
    """Since the run began."""
    generation: int
    age: float
    """Seconds since the process was started."""
    rss: float
    """MB."""
    descriptors: int


@dataclass
class Meter:
    supervisor: Supervisor
    begun: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list[Sample])

    def look(self) -> Sample | None:
        """How it is now; None where there is no process, or no /proc."""
        pid = self.supervisor.pid
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return None
        now = time.monotonic()
        age = now - self.supervisor.started
        rss = pages * _PAGE / 2**20
        return Sample(now - self.begun, self.supervisor.generation, age, rss, descriptors)

    async def run(self, every: float) -> None:
        while True:
            if sample := self.look():
                self.samples.append(sample)
            await asyncio.sleep(every)

    def last_life(self) -> list[Sample]:
        """Of the process that lived last, once it is warm: its first third is left out."""
        if not self.samples:
            return []
        last = [s for s in self.samples if s.generation == self.samples[-1].generation]
        return last[len(last) // 3 :]

    def drift(self) -> tuple[float, float] | None:
        """How much more memory (a share) and descriptors the last life ends with than it starts with;
        None where it is too short to tell."""
        life = self.last_life()
        quarter = len(life) // 4
        if not quarter or life[-1].seconds - life[0].seconds < _LEAST_SECONDS:
            return None

        def medians(part: list[Sample]) -> tuple[float, float]:
            return (
                statistics.median(s.rss for s in part),
                statistics.median(s.descriptors for s in part),
            )

        (rss, open_), (rss_end, open_end) = medians(life[:quarter]), medians(life[-quarter:])
        return rss_end / rss - 1, open_end - open_
