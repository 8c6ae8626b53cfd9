"""A file of any size as lines, each with its number: what is wrong with one is for that line alone."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is not kept: no server would take it (`--max-request-bytes`), and memory is bounded."""

_BOM = b"\xef\xbb\xbf"
_CHUNK = 2**20


class Line(NamedTuple):
    """One line."""

    number: int
    """From 1."""
    end: int
    """Bytes of the file up to its end."""
    data: bytes | None
    """With its line break; None: it is too long."""


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """The lines, without a byte order mark."""
    number = end = 0
    while data := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        end += len(data)
        if len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
            while rest := file.readline(_CHUNK):
                end += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Line(number, end, None)
            continue
        yield Line(number, end, data.removeprefix(_BOM) if number == 1 else data)


def decoded(data: bytes | None) -> str:
    """A line's text. Raises ValueError, which says what is wrong with it."""
    if data is None:
        raise ValueError(f"is longer than {MAX_LINE_BYTES // 2**20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"is not UTF-8 (byte 0x{data[error.start]:02x} at place {error.start + 1})"
        ) from error
