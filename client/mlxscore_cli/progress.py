"""How far a run is, with its rate and the time left; only where somebody looks."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from mlxscore_cli.records import Record
from mlxscore_cli.terminal import stderr


@contextmanager
def progress(size: int | None, last: Record | None = None) -> Generator[Callable[[Record], None]]:
    """What is to be told each record that is done. `size` is the input's, in bytes; `last` is the last
    record that an earlier run did: of the rate of this one it says nothing."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[lines]:,} lines, {task.fields[rate]:,.0f}/s, left"),
        TimeRemainingColumn(),
    )
    before = 0 if last is None else last.index + 1
    with Progress(*columns, console=console, transient=True) as bars:
        begun = 0 if last is None else last.end
        task = bars.add_task("", total=size, completed=begun, lines=before, rate=0.0)

        def tell(record: Record) -> None:
            lines = record.index + 1
            elapsed = bars.tasks[0].elapsed or 0.0
            rate = (lines - before) / elapsed if elapsed > 0 else 0.0
            bars.update(task, completed=record.end, lines=lines, rate=rate)

        yield tell
