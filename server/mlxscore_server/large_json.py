"""JSON of megabytes, read in pieces: Python's lock is held while JSON becomes objects, and so the event
loop would stand still for as long as all of it takes. Knows no HTTP.

What is long in a request is a list that stands directly in its outermost object: items, prompts, ids.
Such a list is cut at commas between its elements, found by numpy, which needs no lock.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

# Read in 5 ms or less, whatever it holds.
_PIECE = 2**17
_BLOCK = 2**20
_QUOTE, _BACKSLASH, _COMMA = b'"'[0], b"\\"[0], b","[0]


@dataclass
class _List:
    """A list in the outermost object, as places in the body."""

    begin: int
    """Of its first byte behind the bracket."""
    end: int
    """Of its closing bracket."""
    cuts: list[int]
    """Of commas between elements, in order."""


def read(body: bytes | bytearray, *, piece: int = _PIECE) -> object:
    """The same as `from_json`, in pieces of about so many bytes. Raises ValueError with what is wrong.

    Of a list there is only that it is one: no request is a list.
    """
    if body[:_BLOCK].lstrip(b" \t\r\n").startswith(b"["):
        return []
    found = [part for part in _lists(body, piece, max(_BLOCK, piece)) if part.cuts]
    if not found:
        return from_json(body)
    marks = [uuid.uuid4().hex for _ in found]
    around, at = bytearray(), 0
    for part, mark in zip(found, marks, strict=True):
        around += body[at : part.begin - 1] + f'"{mark}"'.encode()
        at = part.end + 1
    outer: object = from_json(bytes(around + body[at:]))
    values = {m: _elements(body, part) for m, part in zip(marks, found, strict=True)}
    if isinstance(outer, dict):
        fields = cast(dict[str, Any], outer)
        for name, value in fields.items():
            if isinstance(value, str) and value in values:
                fields[name] = values[value]
    return cast(object, outer)


def _elements(body: bytes | bytearray, part: _List) -> list[Any]:
    elements: list[Any] = []
    for begin, end in zip(
        [part.begin, *(c + 1 for c in part.cuts)], [*part.cuts, part.end], strict=True
    ):
        try:
            some = from_json(b"[" + body[begin:end] + b"]")
        except ValueError as error:
            raise ValueError(f"{error} of what begins at byte {begin}") from None
        if not some:
            raise ValueError(f"expected value at byte {begin}")
        elements += some
    return elements


def _lists(body: bytes | bytearray, piece: int, block: int) -> Iterator[_List]:
    """The lists in the outermost object; none that are not closed."""
    open_list: _List | None = None
    last = 0  # the last cut, or where the list begins
    for places, kinds, depths in _structure(body, block):
        # Few are of interest: brackets between depth 1 and 2, and commas at 2.
        for place, kind, depth in zip(
            places.tolist(), kinds.tolist(), depths.tolist(), strict=True
        ):
            if kind == _COMMA:
                if open_list is not None and place - last >= piece:
                    open_list.cuts.append(place)
                    last = place
            elif depth == 2:  # what opens
                last = place
                open_list = _List(place + 1, place, []) if kind == b"["[0] else None
            elif open_list is not None:
                open_list.end = place
                if kind == b"]"[0]:
                    yield open_list
                open_list = None


def _structure(
    body: bytes | bytearray, block: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]]:
    """Places, bytes and depths behind them of what stands outside of strings at depths 1 and 2."""
    everything = np.frombuffer(body, np.uint8)
    in_string, depth, escapes = 0, 0, 0
    for begin in range(0, len(everything), block):
        part = everything[begin : begin + block]
        quotes, escapes = _quotes(part, escapes)
        inside = np.zeros(len(part), np.int8)
        inside[quotes] = 1
        # 1 from an opening quote on, 0 from a closing one on.
        inside = (np.cumsum(inside) + in_string) & 1
        in_string = int(inside[-1])
        small = (
            part | 0x20
        )  # "[" to "{", "]" to "}": no other byte of interest becomes one of these
        outside = inside == 0
        opens = (small == ord("{")) & outside
        closes = (small == ord("}")) & outside
        depths = depth + np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int64)
        depth = int(depths[-1])
        commas = (part == _COMMA) & outside & (depths == 2)
        wanted = (opens & (depths == 2)) | (closes & (depths == 1))
        # One comma in a stretch is as good as any other.
        chosen = np.flatnonzero(commas)
        chosen = chosen[np.flatnonzero(np.diff(chosen // 1024, prepend=-1))]
        places = np.sort(np.concatenate([np.flatnonzero(wanted), chosen]))
        yield places + begin, part[places], depths[places]


def _quotes(part: NDArray[np.uint8], escapes: int) -> tuple[NDArray[np.int64], int]:
    """Places of the quotes that are not escaped; and the backslashes at the end, modulo 2.

    `escapes`: those before the beginning.
    """
    quotes = np.flatnonzero(part == _QUOTE)
    slashes = np.flatnonzero(part == _BACKSLASH)
    if not len(slashes) and not escapes:
        return quotes, 0
    # How many backslashes stand in a row up to each place: a run's length at its last.
    run = np.zeros(len(part) + 1, np.int64)
    starts = slashes[np.diff(slashes, prepend=-2) > 1]
    ends = slashes[np.diff(slashes, append=len(part) + 1) > 1]
    lengths = ends - starts + 1
    if escapes:
        if len(starts) and starts[0] == 0:
            lengths[0] += 1
        else:
            run[0] = 1
    run[ends + 1] = lengths
    return quotes[run[quotes] % 2 == 0], int(run[-1] % 2)
