"""What comes out: tables for people, JSON for programs. Colours only on a terminal, and never with
NO_COLOR (rich's own rules)."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 10_000
"""Columns, where nobody looks: lines that go into a file or a pipe are not to be broken."""


def stdout() -> Console:
    """For results."""
    return _console(False)


def stderr() -> Console:
    """For progress, summaries and errors."""
    return _console(True)


def _console(on_stderr: bool) -> Console:
    stream = sys.stderr if on_stderr else sys.stdout
    bounded = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=on_stderr, highlight=False, width=None if bounded else _UNBOUNDED)


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    print(json.dumps(value, ensure_ascii=False))


def print_error(message: str) -> None:
    """`mlxscore: error: ...`, whatever is in it."""
    print(f"mlxscore: error: {printable(message)}", file=sys.stderr)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1) -> Table:
    """A table; its first `left` columns hold texts, the others numbers."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, name in enumerate(columns):
        if place < left:
            made.add_column(Text(name), overflow="fold")
        else:
            made.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def printable(text: str) -> str:
    """A text on one line that can do nothing to a terminal: control characters, also those that turn
    the direction of writing, are escaped."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def number(value: float | None, digits: int = 4) -> str:
    """For a cell; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if abs(value) < 1e9 else f"{value:.{digits}e}"
