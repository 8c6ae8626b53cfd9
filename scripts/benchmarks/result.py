"""What a run found, as it is written to JSON and read back. Knows no MLX."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

CONTESTANTS = (
    "cold",
    "warm",
    "flat",
    "floor",
    "own",
    "naive",
    "evaluate",
    "transformers",
    "llama.cpp",
)
"""In the order of the tables; the first three are ours."""
QUICK = ("cold", "warm", "flat", "floor", "evaluate", "transformers")


@dataclass
class Times:
    """One contestant's passes over one load."""

    first: float
    """Seconds of the first pass, over shapes that this process may not have seen before."""
    seconds: list[float]
    """Of the passes that count; the first alone where that took long."""
    peak_bytes: int | None = None
    """Beyond the weights."""
    difference: float | None = None
    """Largest difference of a logprob from ours, nats a token."""

    @property
    def best(self) -> float:
        return min(self.seconds)

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent))


@dataclass
class Result:
    """How one load went."""

    name: str
    what: str
    num_rows: int
    flat_tokens: int
    scored_tokens: int
    computed_tokens: int = 0
    padded_tokens: int = 0
    micro_batches: int = 0
    planning_seconds: float = 0.0
    flops: float = 0.0
    """Of the products with weights for the tokens that ours computes."""
    times: dict[str, Times] = field(default_factory=dict[str, Times])
    """By contestant."""
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Why a contestant has no times."""

    def ratio(self, slower: str, faster: str) -> float | None:
        """How many times faster the second was."""
        if slower not in self.times or faster not in self.times:
            return None
        return self.times[slower].best / self.times[faster].best

    def speed(self, contestant: str) -> float:
        """Flat tokens a second."""
        return self.flat_tokens / self.times[contestant].best


@dataclass
class Run:
    machine: dict[str, str] = field(default_factory=dict[str, str])
    matmul: dict[str, float] = field(default_factory=dict[str, float])
    """GFLOP/s of square products."""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """What each contestant is."""
    loads: dict[str, Result] = field(default_factory=dict[str, Result])
    figures: dict[str, float] = field(default_factory=dict[str, float])
    """Measured once, by name; the unit ends the name."""
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Parts of the run that could not be measured, and why."""

    @property
    def shape(self) -> str:
        return self.machine.get("model", "")

    @property
    def on_gpu(self) -> bool:
        return self.machine.get("device") != "cpu"

    @property
    def peak_flops(self) -> float:
        """Floating-point operations a second of the fastest product measured."""
        return max(self.matmul.values(), default=0.0) * 1e9

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Run":
        found = json.loads(path.read_text(encoding="utf-8"))
        found["loads"] = {name: _result(load) for name, load in found["loads"].items()}
        return Run(**found)


def _result(found: dict[str, Any]) -> Result:
    times = {name: Times(**t) for name, t in found.pop("times").items()}
    known = {f.name for f in fields(Result)}
    return Result(times=times, **{k: v for k, v in found.items() if k in known})
