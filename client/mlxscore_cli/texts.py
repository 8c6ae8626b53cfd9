"""Texts that a command is given: as an argument, from standard input, from files."""

import sys
from pathlib import Path

STDIN = "-"


class BadText(Exception):
    """A file holds no text; the message names it, and where it can the line."""


def argument(given: str) -> str:
    """The argument itself; for '-' standard input, without the line break at its end. Raises BadText."""
    return read(STDIN).removesuffix("\n").removesuffix("\r") if given == STDIN else given


def read(name: str) -> str:
    """A whole file, or standard input, as it is but for a byte order mark. Raises BadText."""
    shown = "standard input" if name == STDIN else name
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise BadText(f"{shown}: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadText(
            f"{shown}, line {line}: is not UTF-8 (byte 0x{data[error.start]:02x})"
        ) from error
    if not text:
        raise BadText(f"{shown}: is empty: there is nothing to score")
    return text
