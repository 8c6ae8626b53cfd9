"""What scripts/bench makes of a stored run: tables, pictures, and whether another one is worse."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "scripts" / "bench.py"


def run_of(cold: float, **changes: Any) -> dict[str, Any]:
    """A run of one load: 1,000 tokens in `cold` seconds, in 10 by transformers."""
    times = {
        "cold": {"first": 3.0, "seconds": [cold, 2 * cold], "peak_bytes": 10**6},
        "warm": {"first": 0.2, "seconds": [0.1]},
        "floor": {"first": 1.0, "seconds": [0.5]},
        "transformers": {"first": 10.0, "seconds": [10.0], "difference": 1e-6},
    }
    load = {
        "name": "choices",
        "what": "<one> & another",
        "num_rows": 4,
        "flat_tokens": 1000,
        "scored_tokens": 4,
        "computed_tokens": 100,
        "padded_tokens": 125,
        "flops": 1e9,
        "times": times,
        "failures": {"naive": "its logits alone are 99 GB"},
    }
    machine = {"model": "default", "device": "cpu", "processor": "some"}
    return {
        "machine": machine,
        "matmul": {"float32 1024": 10.0},
        "loads": {"choices": load},
        "figures": {"http few-shot / engine": 0.95},
    } | changes


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(run_of(1.0)), encoding="utf-8")
    return path


def cells(text: str, first: str) -> list[str]:
    """The cells after the first of the Markdown row that begins with it."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_tables_hold_the_figures(stored: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.md"
    done = bench(stored, "--markdown", made)
    assert done.returncode == 0, done.stderr
    text = made.read_text(encoding="utf-8")
    assert cells(text, "choices: times as fast as transformers") == ["10.00", ">= 10", "met"]
    assert cells(text, "http few-shot / engine") == ["0.95", ">= 0.9", "met"]
    # Computed, flat / computed, padding, micro-batches, planning, share of 10 GFLOP/s.
    assert "| choices | 100 | 10.0 | 20.0% | 0 | 0.0% | 10% |" in text
    # Flat tokens a second; the star says that the first pass was the only one.
    assert "| choices | <one> & another | 1,000 | 1,000 | 10,000 | 100* |" in text
    assert "| naive | choices | its logits alone are 99 GB |" in text


@pytest.mark.parametrize(("cold", "code"), [(1.0, 0), (1.1, 0), (1.3, 1), (0.5, 0)])
def test_ratios_that_fell_are_an_error(
    stored: Path, tmp_path: Path, cold: float, code: int
) -> None:
    now = run_of(cold)
    now["loads"]["choices"]["times"]["warm"]["seconds"] = [0.1 * cold]
    path = tmp_path / "now.json"
    path.write_text(json.dumps(now), encoding="utf-8")
    done = bench(path, "--check", stored)
    assert done.returncode == code, done.stderr
    assert ("choices: cold/transformers" in done.stdout.splitlines()[-1]) == bool(code)


def test_another_model_cannot_be_compared(stored: Path, tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    machine = {"model": "llama-1b", "device": "some GPU"}
    path.write_text(json.dumps(run_of(1.0, machine=machine)), encoding="utf-8")
    done = bench(path, "--check", stored)
    assert done.returncode == 2
    assert "the stored run is of default on cpu" in done.stderr


def test_pictures_are_svg_with_bars_to_scale(stored: Path, tmp_path: Path) -> None:
    assert bench(stored, "--pictures", tmp_path).returncode == 0
    picture = ElementTree.parse(tmp_path / "speed-default.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.get("width", 0)) for bar in picture.iter(f"{space}rect")][1:]
    assert widths[0] == pytest.approx(10 * widths[1])
    words = [text.text for text in picture.iter(f"{space}text")]
    assert "choices: <one> & another" in words
    assert ElementTree.parse(tmp_path / "floor-default.svg").getroot().tag == f"{space}svg"
