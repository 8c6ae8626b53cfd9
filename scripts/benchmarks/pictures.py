"""Bars as SVG, drawn from a run's figures."""

from html import escape
from pathlib import Path

from benchmarks.result import Result, Run

_COLOURS = {
    "cold": "#0b6e4f",
    "flat": "#8fb8a8",
    "own": "#9aa5b1",
    "naive": "#c9a227",
    "evaluate": "#b5651d",
    "transformers": "#5b6abf",
    "llama.cpp": "#8c4a8c",
}
_LABELS = {
    "cold": "mlxscore",
    "flat": "mlxscore, nothing shared",
    "own": "the model alone, unpadded",
    "naive": "MLX, all logits, padded",
    "evaluate": "mlx_lm.evaluate",
    "transformers": "transformers + torch",
    "llama.cpp": "llama.cpp",
}
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _HEAD = 860, 210, 110, 18, 4, 34

Bar = tuple[str, float, str, str]
"""Label, length, what stands behind it, colour."""


def draw(run: Run, folder: Path) -> list[Path]:
    """speed-SHAPE.svg and floor-SHAPE.svg; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    done = [load for load in run.loads.values() if "cold" in load.times]
    speeds = [(f"{load.name}: {load.what}", _speeds(load)) for load in done]
    against = [load for load in done if "floor" in load.times]
    floors = [("as long as the same number of plain tokens = 1", [_floor(x) for x in against])]
    written: list[Path] = []
    for name, title, groups in (
        ("speed", f"Tokens scored a second, {_of(run)}", speeds),
        ("floor", f"Time, {_of(run)}", floors),
    ):
        path = folder / f"{name}-{run.shape}.svg"
        path.write_text(bars(title, groups), encoding="utf-8")
        written.append(path)
    return written


def bars(title: str, groups: list[tuple[str, list[Bar]]]) -> str:
    """Horizontal bars; in each group the longest is as long as there is room."""
    parts: list[str] = []
    y = _HEAD
    for head, members in groups:
        parts.append(_text(12, y + 14, head, weight="bold"))
        y += 22
        longest = max((length for _, length, _, _ in members), default=1.0) or 1.0
        for label, length, behind, colour in members:
            width = max(1.0, (_WIDTH - _LEFT - _RIGHT) * length / longest)
            parts.append(_text(_LEFT - 8, y + 13, label, anchor="end"))
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            )
            parts.append(_text(_LEFT + width + 6, y + 13, behind))
            y += _BAR + _GAP
        y += 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
            f'viewBox="0 0 {_WIDTH} {y}" font-family="system-ui, sans-serif" font-size="13">',
            f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>',
            _text(12, 22, title, weight="bold", size=16),
            *parts,
            "</svg>\n",
        ]
    )


def _speeds(load: Result) -> list[Bar]:
    return [
        (_LABELS[name], load.speed(name), _short(load.speed(name)), colour)
        for name, colour in _COLOURS.items()
        if name in load.times
    ]


def _floor(load: Result) -> Bar:
    ratio = load.times["cold"].best / load.times["floor"].best
    return (load.name, ratio, f"{ratio:.2f}", _COLOURS["cold"])


def _of(run: Run) -> str:
    return f"{run.shape} on {run.machine.get('processor' if not run.on_gpu else 'device', '?')}"


def _short(speed: float) -> str:
    if speed >= 1e6:
        return f"{speed / 1e6:.2f} M"
    return f"{speed / 1e3:.1f} k" if speed >= 1e4 else f"{speed:,.0f}"


def _text(
    x: float, y: float, what: str, *, anchor: str = "start", weight: str = "normal", size: int = 13
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y}" {style} fill="#222222">{escape(what)}</text>'
