"""CSV and TSV as records: which column is what of an item of `POST /score`."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from mlxscore_cli.lines import MAX_LINE_BYTES, Line, read_lines
from mlxscore_cli.records import Record
from mlxscore_cli.stop import Stop


@dataclass(frozen=True)
class Columns:
    """Names in the header line. `text` is of a whole text, and then the other two are not read."""

    context: str
    continuations: Sequence[str]
    text: str | None
    id: str
    """Where there is no such column, results have no id."""

    def item(self, row: dict[str, str]) -> dict[str, Any]:
        """A row's item."""
        made: dict[str, Any] = {"id": row[self.id]} if self.id in row else {}
        if self.text is not None:
            return made | {"text": row[self.text]}
        made["context"] = row[self.context]
        if len(self.continuations) == 1:
            return made | {"continuation": row[self.continuations[0]]}
        return made | {"continuations": [row[name] for name in self.continuations]}

    def check(self, header: Sequence[str], shown: str) -> None:
        """Raise Stop where a column is not there."""
        needed = [(self.text, "--text-column")]
        if self.text is None:
            needed = [(self.context, "--context-column")]
            needed += [(name, "--continuation-column") for name in self.continuations]
        for name, flag in needed:
            if name not in header:
                has = ", ".join(map(repr, header)) or "none"
                raise Stop(
                    f"{shown}, line 1: there is no column {name!r} ({flag}); there are: {has}"
                )


def read_table(file: BinaryIO, columns: Columns, delimiter: str, shown: str) -> Iterator[Record]:
    """A record a row below the header. `shown` is what errors call the file. Raises Stop at once where
    the header lacks a column."""
    # As long as a line may be.
    csv.field_size_limit(MAX_LINE_BYTES)
    source = _Source(read_lines(file))
    reader = csv.reader(source, delimiter=delimiter)
    header: list[str] = next(reader, list[str]())
    columns.check(header, shown)
    return _rows(reader, header, source, columns)


class _Source:
    """Lines for csv's reader, which asks for more of them where a quoted cell goes on."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self.last = Line(0, 0, b"")
        self.too_long = False

    def __iter__(self) -> "_Source":
        return self

    def __next__(self) -> str:
        self.last = next(self._lines)
        self.too_long = self.too_long or self.last.data is None
        # What is no UTF-8 becomes lone surrogates: only the cell that holds them is bad.
        return (self.last.data or b"-\n").decode("utf-8", "surrogateescape")


def _rows(reader: Any, header: list[str], source: _Source, columns: Columns) -> Iterator[Record]:
    index = 0
    while True:
        source.too_long = False
        row: dict[str, str] = {}
        error = None
        try:
            cells: list[str] = next(reader)
            if not cells:
                continue
            row = dict(zip(header, cells, strict=False))
            error = _wrong(cells, header, source.too_long)
        except StopIteration:
            return
        except csv.Error as found:
            error = f"cannot be read as a row: {found}"
        fields = {} if error else columns.item(row)
        if error and row.get(columns.id, "").isprintable():
            fields = {"id": row.get(columns.id)}
        yield Record(index, source.last.number, source.last.end, fields, error)
        index += 1


def _wrong(cells: list[str], header: list[str], too_long: bool) -> str | None:
    if too_long:
        return f"is longer than {MAX_LINE_BYTES // 2**20} MiB"
    if len(cells) < len(header):
        return f"column {header[len(cells)]!r} is missing: {len(cells)} cells, not {len(header)}"
    if len(cells) > len(header):
        return f"has {len(cells)} cells, and the header {len(header)}: is one not quoted?"
    for name, cell in zip(header, cells, strict=True):
        for character in cell:
            if "\udc80" <= character <= "\udcff":
                return f"column {name!r} is not UTF-8 (byte 0x{ord(character) - 0xDC00:02x})"
    return None
