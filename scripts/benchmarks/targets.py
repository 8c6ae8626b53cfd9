"""What the project asks of itself, and what a run found."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.result import Result, Run


@dataclass(frozen=True)
class Target:
    what: str
    found: float
    bound: float
    unit: str = ""
    least: bool = True
    """Whether more is better."""

    @property
    def met(self) -> bool:
        return self.found >= self.bound if self.least else self.found <= self.bound

    def row(self) -> list[str]:
        digits = 0 if self.unit in (" MB", " GB") and self.found >= 100 else 2
        bound = f"{'>=' if self.least else '<='} {self.bound:,g}{self.unit}"
        found = f"{self.found:,.{digits}f}{self.unit}"
        return [self.what, found, bound, "met" if self.met else "MISSED"]


# load, what it is compared with, how many times faster ours must be; by shape
_FASTER: dict[str, list[tuple[str, str, float]]] = {
    "llama-1b": [
        ("shorter", "own", 0.98),
        ("uniform", "transformers", 1.7),
        ("mixed", "transformers", 1.8),
    ],
    "llama-8b": [
        ("shorter", "own", 0.98),
        ("uniform", "transformers", 1.3),
        ("mixed", "transformers", 1.4),
        ("choices", "transformers", 36.0),
        ("letters", "transformers", 45.0),
    ],
    "default": [
        ("1x512", "transformers", 0.9),
        ("8x128", "transformers", 0.9),
        ("32x32", "transformers", 0.9),
        ("mixed", "transformers", 1.2),
        ("choices", "transformers", 10.0),
        ("choices", "flat", 8.0),
        ("choices", "evaluate", 10.0),
        ("documents", "flat", 4.0),
    ],
}
# load, times the floor
_FLOORS: dict[str, list[tuple[str, float]]] = {
    "llama-8b": [("choices", 1.2), ("letters", 1.08), ("documents", 1.08), ("pairs", 1.08)]
}
_FIGURES: list[tuple[str, str, float, bool, bool | None]] = [
    # figure, unit, bound, at least, on a GPU only (None: anywhere)
    ("4-bit, dequantize auto / not quantised", "", 0.95, True, None),
    ("http few-shot / engine", "", 0.9, True, None),
    ("http uniform / engine", "", 0.9, True, None),
    ("pair behind a bulk run, p95, micro-batches", "", 4.0, False, None),
    ("best token / own forward", "", 0.1, False, None),
    ("5 best tokens / own forward", "", 0.25, False, None),
    ("served completions / core", "", 1.15, False, None),
    ("/tokenize p99 under load, ms", " ms", 100.0, False, None),
    ("process start to healthy, s", " s", 10.0, False, None),
    ("processor time in 5 idle s, s", " s", 0.01, False, None),
]
_PEAK_GB, _FIRST, _WARM, _PLANNING, _ECHO = 16.0, 1.5, 0.15, 0.05, 0.9


def targets(run: Run) -> list[Target]:
    """Those that this run has figures for."""
    return [*_speeds(run), *_per_load(run), *_figures(run)]


def _speeds(run: Run) -> Iterator[Target]:
    for name, other, bound in _FASTER.get(run.shape, []):
        if name in run.loads and (found := run.loads[name].ratio(other, "cold")) is not None:
            yield Target(f"{name}: times as fast as {other}", found, bound)
    for name, bound in _FLOORS.get(run.shape, []):
        if name in run.loads and (found := run.loads[name].ratio("cold", "floor")) is not None:
            yield Target(f"{name}: time / floor", found, bound, least=False)
    if run.shape == "llama-8b" and {"echo", "uniform"} <= run.loads.keys():
        echo, uniform = run.loads["echo"], run.loads["uniform"]
        if "cold" in echo.times and "cold" in uniform.times:
            found = echo.speed("cold") / uniform.speed("cold")
            yield Target("echo: speed / speed with 32 wanted", found, _ECHO)


def _per_load(run: Run) -> Iterator[Target]:
    """Targets of all loads, each by the load that comes off worst."""
    done = [load for load in run.loads.values() if "cold" in load.times]

    def worst(what: str, found: dict[str, float], bound: float, unit: str = "") -> Iterator[Target]:
        if found:
            name = max(found, key=lambda n: found[n])
            yield Target(f"{what} (worst: {name})", found[name], bound, unit, least=False)

    if run.on_gpu:
        peaks = {
            load.name: max(
                t.peak_bytes or 0 for n, t in load.times.items() if n in ("cold", "warm")
            )
            for load in done
        }
        gigabytes = {name: peak / 1e9 for name, peak in peaks.items()}
        yield from worst("peak beyond the weights", gigabytes, _PEAK_GB, " GB")
        first = {load.name: load.times["cold"].first / load.times["cold"].best for load in done}
        yield from worst("first pass / later ones", first, _FIRST)
        return
    warm = {load.name: r for load in done if (r := load.ratio("warm", "cold")) is not None}
    yield from worst("warm repeat / cold", warm, _WARM)
    yield from worst("planning / all", {load.name: _planning(load) for load in done}, _PLANNING)


def _planning(load: Result) -> float:
    return load.planning_seconds / load.times["cold"].best


def _figures(run: Run) -> Iterator[Target]:
    for name, unit, bound, least, on_gpu in _FIGURES:
        if name in run.figures and on_gpu in (None, run.on_gpu):
            yield Target(name, run.figures[name], bound, unit, least)
