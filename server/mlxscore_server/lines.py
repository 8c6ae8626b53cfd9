"""Bytes that come in pieces of any size, cut into lines of bounded length. Knows no JSON, no HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """A line that is not blank."""

    index: int
    """Among those."""
    data: bytes | None
    """None: it was longer than a line may be, and is gone."""

    @property
    def size(self) -> int:
        return len(self.data or b"")


class Lines:
    """Ends of lines are LF or CR LF; blank lines do not count; a byte order mark may stand first."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: a longer line is thrown away while it comes in."""
        self._max_bytes = max_bytes
        self._part = bytearray()
        self._too_long = False
        self._begun = False
        self._count = 0

    def feed(self, data: bytes) -> Iterator[Line]:
        """The lines that end in the next piece. Each `feed` is to be used up before the next."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            self._add(data[begin:end])
            yield from self._end()
            begin = end + 1
        self._add(data[begin:])

    def end(self) -> Iterator[Line]:
        """What comes after the last end of a line."""
        return self._end()

    def _add(self, data: bytes) -> None:
        # CR is not counted before it is known whether LF follows.
        if self._too_long or len(self._part) + len(data) > self._max_bytes + 1 + len(_BOM):
            self._too_long = True
            self._part.clear()
        else:
            self._part += data

    def _end(self) -> Iterator[Line]:
        data, too_long = bytes(self._part), self._too_long
        self._part.clear()
        self._too_long = False
        if not self._begun:
            self._begun = True
            data = data.removeprefix(_BOM)
        data = data.removesuffix(b"\r")
        if not too_long and not data.strip():
            return
        index, self._count = self._count, self._count + 1
        yield Line(index, None if too_long or len(data) > self._max_bytes else data)
