"""What was found, as plain text and as Markdown."""

from benchmarks.result import CONTESTANTS, Result, Run
from benchmarks.tables import Table, aligned, piped
from benchmarks.targets import targets


def text(run: Run) -> str:
    width = max(map(len, run.machine), default=0)
    lines = [f"{key:<{width}}  {value}" for key, value in _machine(run)]
    return "\n\n".join(["\n".join(lines), *(aligned(table) for table in _tables(run))]) + "\n"


def markdown(run: Run) -> str:
    lines = "\n".join(f"- {key}: {value}" for key, value in _machine(run))
    return "\n\n".join([lines, *(piped(table) for table in _tables(run))]) + "\n"


def _machine(run: Run) -> list[tuple[str, str]]:
    products = ", ".join(f"{name}: {speed:,.0f}" for name, speed in run.matmul.items())
    notes = [(name, run.notes[name]) for name in CONTESTANTS if name in run.notes]
    return [*run.machine.items(), ("GFLOP/s", products), *notes]


def _tables(run: Run) -> list[Table]:
    done = [load for load in run.loads.values() if "cold" in load.times]
    tables = [_speeds(done), _ratios(done), _work(run, done), _memory(done), _differences(done)]
    tables += [_figures(run), _targets(run), _failures(run)]
    return [table for table in tables if len(table) > 1]


def _names(loads: list[Result], *, without: tuple[str, ...] = ()) -> list[str]:
    return [n for n in CONTESTANTS if n not in without and any(n in load.times for load in loads)]


def _speeds(loads: list[Result]) -> Table:
    """Flat tokens a second of the best pass; a star where the first pass was the only one."""
    names = _names(loads, without=("floor",))
    table = [["load", "rows", "flat tokens", *(f"{name} tok/s" for name in names)]]
    for load in loads:
        cells = []
        for name in names:
            times = load.times.get(name)
            star = "*" if times and times.seconds == [times.first] else ""
            cells.append(f"{load.speed(name):,.0f}{star}" if times else "-")
        table.append([load.name, load.what, f"{load.flat_tokens:,}", *cells])
    return table


def _ratios(loads: list[Result]) -> Table:
    """How many times as fast as each contestant ours is, cold; and the time against the floor."""
    names = _names(loads, without=("cold", "warm", "floor"))
    heads = [f"cold/{name}" for name in names]
    table = [["load", *heads, "warm/cold time", "time/floor", "first/cold", "p50 ms", "p95 ms"]]
    for load in loads:
        cold = load.times["cold"]
        ratios = [load.ratio(name, "cold") for name in names]
        ratios += [load.ratio("warm", "cold"), load.ratio("cold", "floor"), cold.first / cold.best]
        cells = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        waits = [f"{1e3 * cold.percentile(percent):,.1f}" for percent in (50, 95)]
        table.append([load.name, *cells, *waits])
    return table


def _work(run: Run, loads: list[Result]) -> Table:
    """What was computed, and how well the device was used for it."""
    head = ["load", "computed", "flat/computed", "padding", "micro-batches", "planning"]
    table = [[*head, "of the matmul peak"]]
    for load in loads:
        seconds = load.times["cold"].best
        padding = 1 - load.computed_tokens / max(1, load.padded_tokens)
        cells = [f"{load.computed_tokens:,}"]
        cells += [f"{load.flat_tokens / max(1, load.computed_tokens):.1f}", f"{padding:.1%}"]
        cells += [f"{load.micro_batches}", f"{load.planning_seconds / seconds:.1%}"]
        peak = run.peak_flops
        cells.append(f"{load.flops / seconds / peak:.0%}" if peak else "-")
        table.append([load.name, *cells])
    return table


def _memory(loads: list[Result]) -> Table:
    names = [n for n in _names(loads) if any(n in x.times and x.times[n].peak_bytes for x in loads)]
    table = [["load", *(f"{name} peak MB" for name in names)]]
    for load in loads:
        peaks = [load.times[n].peak_bytes if n in load.times else None for n in names]
        table.append([load.name, *("-" if p is None else f"{p / 1e6:,.0f}" for p in peaks)])
    return table if names else []


def _differences(loads: list[Result]) -> Table:
    """Largest difference from ours, nats a token: that all do the same work."""
    names = [n for n in _names(loads) if any(n in x.times and x.times[n].difference for x in loads)]
    table = [["load", *(f"{name} - cold, nats" for name in names)]]
    for load in loads:
        found = [load.times[n].difference if n in load.times else None for n in names]
        table.append([load.name, *("-" if d is None else f"{d:.1e}" for d in found)])
    return table if names else []


def _figures(run: Run) -> Table:
    def cell(value: float) -> str:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"

    aimed = {target.what for target in targets(run)}
    found = {name: value for name, value in run.figures.items() if name not in aimed}
    return [["what", "found"], *([name, cell(value)] for name, value in found.items())]


def _targets(run: Run) -> Table:
    return [["what", "found", "target", ""], *(target.row() for target in targets(run))]


def _failures(run: Run) -> Table:
    table = [["contestant", "load", "why"]]
    table += [["", what, why] for what, why in run.failures.items()]
    for load in run.loads.values():
        table += [[name, load.name, why] for name, why in load.failures.items()]
    return table
