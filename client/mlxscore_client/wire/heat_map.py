"""Tokens coloured by their surprisal, as HTML for notebooks. No script, no style sheet, no request.

The colours are cividis' (Nuñez, Anderton and Renslow 2018), made to look alike to readers with and
without colour vision deficiency: dark blue is expected, yellow is surprising. Lightness grows with it,
so that it is read in grey too; the letters on it are white or black, whichever stands out more.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

# Five of cividis' colours, at equal distances.
_CIVIDIS = ((0, 34, 78), (67, 78, 108), (125, 124, 120), (187, 173, 108), (254, 232, 56))
MAX_BITS = 16.0
"""What the scale ends at: about the surprisal of a token of a vocabulary of 65,536 by chance."""

_TOKEN = "padding:1px 0;border-radius:2px;white-space:pre-wrap;"
_BOX = "font-family:monospace;line-height:1.9;overflow-wrap:anywhere;"
_LEGEND = "font-family:sans-serif;font-size:85%;margin-top:0.3em;"


class Cell(NamedTuple):
    """A token of the map."""

    text: str
    bits: float
    """Its surprisal."""
    rank: int


def heat_map(cells: Sequence[Cell], *, title: str = "") -> str:
    """HTML of the tokens, with a legend in bits. All text is escaped."""
    spans = "".join(_span(cell) for cell in cells)
    head = f'<div style="{_LEGEND}">{escape(title)}</div>' if title else ""
    # A base direction of its own: what a text does to the order of letters ends with the map.
    return f'{head}<div dir="auto" style="{_BOX}">{spans}</div>{_legend()}'


def _span(cell: Cell) -> str:
    told = f"{cell.bits:.2f} bits, rank {cell.rank}"
    # A line break is shown and made; a token of a line break alone would have no place for its colour.
    shown = escape(cell.text).replace("\n", "↵\n")
    return f'<bdi style="{_TOKEN}{_css(cell.bits)}" title="{told}">{shown}</bdi>'


def _legend() -> str:
    steps = [MAX_BITS * i / 4 for i in range(5)]
    named = [f"{bits:g}" if bits < MAX_BITS else f"{bits:g} or more" for bits in steps]
    swatches = "".join(
        f'<span style="padding:1px 6px;{_css(bits)}">{name}</span>'
        for bits, name in zip(steps, named, strict=True)
    )
    return f'<div style="{_LEGEND}">surprisal, bits: {swatches}</div>'


def _css(bits: float) -> str:
    background, ink = colours(bits)
    return f"background:{background};color:{ink}"


def colours(bits: float) -> tuple[str, str]:
    """Background and letters of a surprisal, as `#rrggbb`."""
    place = min(max(bits / MAX_BITS, 0.0), 1.0) * (len(_CIVIDIS) - 1)
    low = min(math.floor(place), len(_CIVIDIS) - 2)
    part = place - low
    rgb = [round(a + (b - a) * part) for a, b in zip(_CIVIDIS[low], _CIVIDIS[low + 1], strict=True)]
    background = "#{:02x}{:02x}{:02x}".format(*rgb)
    # Where black and white have the same contrast (WCAG 2's relative luminance).
    return background, "#000000" if _luminance(rgb) > 0.179 else "#ffffff"


def _luminance(rgb: Sequence[int]) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
