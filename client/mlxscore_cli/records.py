"""The records of an input file: one item, pair or sentence each, or what is wrong with it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from mlxscore_cli.lines import decoded, read_lines


@dataclass(frozen=True)
class Record:
    """One record."""

    index: int
    """Its place among the records, from 0: lines that are empty are none."""
    line: int
    """Where it ends in the file, from 1."""
    end: int
    """Bytes of the file up to there."""
    fields: dict[str, Any]
    error: str | None = None
    """Why it cannot be used."""

    @property
    def id(self) -> str | None:
        """The caller's name for it, where it has one."""
        given = self.fields.get("id")
        return None if given is None else str(given)


def read_jsonl(file: BinaryIO) -> Iterator[Record]:
    """An object a line."""
    index = 0
    for line in read_lines(file):
        if line.data is not None and not line.data.strip():
            continue
        fields: dict[str, Any] = {}
        error = None
        try:
            fields = _object(decoded(line.data))
        except ValueError as found:
            error = str(found)
        yield Record(index, line.number, line.end, fields, error)
        index += 1


def _object(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("is not JSON that can be read: it is nested too deeply") from error
    if not isinstance(value, dict):
        start = text.lstrip()[:20].rstrip()
        raise ValueError(f"must be a JSON object, not {start!r}")
    return cast(dict[str, Any], value)
