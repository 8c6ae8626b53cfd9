"""What was found, as plain text and as Markdown."""

from dataclasses import dataclass, field

from benchmarks.completions import TOPS, Echo
from benchmarks.contest import Memory, Result

PROTOTYPE_TOKENS_PER_SECOND = {"llama-1b": 257_000, "llama-8b": 41_400}
"""Load A' on one H200, left-padded (design.md section 6)."""

Table = list[list[str]]


@dataclass
class Report:
    machine: dict[str, str]
    matmul: dict[str, float] = field(default_factory=dict[str, float])
    """GFLOP/s."""
    loads: list[Result] = field(default_factory=list[Result])
    memory: Memory | None = None
    echo: Echo | None = None
    start_seconds: float | None = None
    idle_cpu_seconds: float | None = None

    def text(self) -> str:
        width = max(map(len, self.machine))
        lines = [f"{key:<{width}}  {value}" for key, value in self._machine()]
        parts = ["\n".join(lines), *(_aligned(table) for table in self._tables())]
        return "\n\n".join(parts) + "\n"

    def markdown(self) -> str:
        lines = "\n".join(f"- {key}: {value}" for key, value in self._machine())
        return "\n\n".join([lines, *(_piped(table) for table in self._tables())]) + "\n"

    def _machine(self) -> list[tuple[str, str]]:
        products = ", ".join(f"{name}: {speed:,.0f}" for name, speed in self.matmul.items())
        return [*self.machine.items(), ("GFLOP/s", products)]

    def _tables(self) -> list[Table]:
        tables = [self._speeds(), self._ratios(), self._echo(), self._targets()]
        return [table for table in tables if len(table) > 1]

    def _speeds(self) -> Table:
        names = [n for n in ("own", "core", "naive", "served") if n in self.loads[0].seconds]
        head = ["load", "rows", "flat tokens", "computed"]
        table = [[*head, *(f"{name} tok/s" for name in names)]]
        for load in self.loads:
            speeds = [f"{load.flat_tokens / load.seconds[name]:,.0f}" for name in names]
            counts = [f"{load.flat_tokens:,}", f"{load.computed_tokens:,}"]
            table.append([load.name, load.what, *counts, *speeds])
        return table

    def _ratios(self) -> Table:
        head = ["load", "core/own", "core/naive", "served/core", "4 choices/1"]
        table = [[*head, "core peak MB", "naive peak MB", "core - naive, nats"]]
        for load in self.loads:
            peaks = [f"{load.peak_bytes[name] / 1e6:,.0f}" for name in ("core", "naive")]
            ratios = [
                _ratio(load, "own", "core"),
                _ratio(load, "naive", "core"),
                _ratio(load, "core", "served"),
                _ratio(load, "core", "core, 1 choice"),
            ]
            cells = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            table.append([load.name, *cells, *peaks, f"{load.difference:.1e}"])
        return table

    def _echo(self) -> Table:
        table = [["echo", "own s", *(f"top {k} s" for k in TOPS), "core s", "served s"]]
        if self.echo is not None:
            names = ["own", *(f"top {k}" for k in TOPS), "core", "served"]
            seconds = self.echo.seconds
            cells = [f"{seconds[n]:.3f}" if n in seconds else "-" for n in names]
            table.append([self.echo.what, *cells])
        return table

    def _targets(self) -> Table:
        table = [["what", "found", "target", ""]]

        def row(what: str, found: float | None, unit: str, bound: float, least: bool) -> None:
            if found is not None:
                met = found >= bound if least else found <= bound
                digits = 0 if unit in (" MB", " tok/s") else 2
                target = f"{'>=' if least else '<='} {bound:,g}{unit}"
                table.append(
                    [what, f"{found:,.{digits}f}{unit}", target, "met" if met else "MISSED"]
                )

        for load in self.loads:
            name, one = f"load {load.name}", "core, 1 choice"
            if not load.of_choices:
                row(f"core / own, {name}", _ratio(load, "own", "core"), "", 0.8, True)
            row(f"served / core, {name}", _ratio(load, "core", "served"), "", 0.9, True)
            row("4 one-letter choices / 1", _ratio(load, "core", one), "", 1.15, False)
            before = PROTOTYPE_TOKENS_PER_SECOND.get(self.machine["model"])
            if load.name == "A'" and before is not None:
                speed = load.flat_tokens / load.seconds["core"]
                row(
                    "core, load A' (0.9 of the first prototype's)",
                    speed,
                    " tok/s",
                    0.9 * before,
                    True,
                )
        if self.memory is not None:
            for wanted, peak in self.memory.peak_bytes.items():
                what = f"peak above weights, 64 x 512, V 49,152, {wanted} wanted"
                row(what, peak / 1e6, " MB", 1000, False)
            naive = f"{self.memory.naive_logits_bytes / 1e6:,.0f} MB"
            table.append(["  (the naive path's logits alone, float32)", naive, "", ""])
        if self.echo is not None:
            seconds, what = self.echo.seconds, self.echo.what
            row(f"best token / own forward, {what}", self.echo.share(1), "", 0.1, False)
            row(f"5 best tokens / own forward, {what}", self.echo.share(5), "", 0.25, False)
            if "served" in seconds:
                ratio = seconds["served"] / seconds["core"]
                row(f"served / core, {self.echo.served}", ratio, "", 1.15, False)
                p99 = self.echo.tokenize_ms["p99"]
                row("/tokenize p99 while the model is busy", p99, " ms", 100, False)
        row("process start to healthy, warm cache", self.start_seconds, " s", 10, False)
        row("processor time in 5 idle s", self.idle_cpu_seconds, " s", 0.01, False)
        return table


def _ratio(load: Result, slower: str, faster: str) -> float | None:
    """How many times faster the second was."""
    if slower not in load.seconds or faster not in load.seconds:
        return None
    return load.seconds[slower] / load.seconds[faster]


def _aligned(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if _is_number(i, table) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _piped(table: Table) -> str:
    rules = ["---:" if _is_number(i, table) else "---" for i in range(len(table[0]))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [table[0], rules, *table[1:]])


def _is_number(column: int, table: Table) -> bool:
    return table[0][column] not in ("load", "rows", "what", "target", "echo", "")
