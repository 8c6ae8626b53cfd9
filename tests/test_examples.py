"""Each program in examples/, as its header says, and the notebook; on a tiny model that knows nothing."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from server_process import ServerProcess

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


def commands(program: Path) -> list[str]:
    """What its header tells one to type."""
    header = program.read_text("utf-8").split('"""')[1]
    lines = (line.strip().partition("    #")[0] for line in header.splitlines())
    return [line for line in lines if line.startswith(f"python examples/{program.name}")]


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_server: ServerProcess) -> Path:
    """A folder like the repository's top, in which programs may leave files, and the server to ask."""
    for name in ("examples", "README.md", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("MLXSCORE_BASE_URL", tiny_server.url)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> str:
    arguments = [sys.executable, "-W", "error", *shlex.split(command)[1:]]
    done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_programs(program: Path, top: Path) -> None:
    told = commands(program)
    assert told, "its header names no command"
    said = [run(command) for command in told]
    WANTED[program.stem](said[0], top)


def ranked(said: str, top: Path) -> None:
    shares = [float(line.split()[1].rstrip("%")) for line in said.splitlines()]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.2)


def classified(said: str, top: Path) -> None:
    assert said.count("of 8 right") == 3
    assert said.count("A dull film.") == 3


def measured(said: str, top: Path) -> None:
    with (top / "surprisal.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sentences = (EXAMPLES / "data" / "sentences.txt").read_text("utf-8").splitlines()
    assert [row["word"] for row in rows] == " ".join(sentences).split()
    assert {row["sentence"] for row in rows} == {str(i + 1) for i in range(len(sentences))}
    assert all(float(row["surprisal_bits"]) > 0 for row in rows)


def tabled(said: str, top: Path) -> None:
    *files, together = [line.split(maxsplit=5) for line in said.splitlines()[1:]]
    assert [line[-1] for line in files] == ["README.md", "CHANGELOG.md"]
    assert int(together[0]) == sum(int(line[0]) for line in files)


def completed(said: str, top: Path) -> None:
    lines = (top / "with_logps.jsonl").read_text("utf-8").splitlines()
    given = (EXAMPLES / "data" / "preferences.jsonl").read_text("utf-8").splitlines()
    for line, old in zip(map(json.loads, lines), map(json.loads, given), strict=True):
        assert line.pop("ref_chosen_logps") < 0
        assert line.pop("ref_rejected_logps") < 0
        assert line == old


def called(said: str, top: Path) -> None:
    assert "of 200 sums right" in said


WANTED: dict[str, Any] = {
    "rank": ranked,
    "classify": classified,
    "surprisal_to_csv": measured,
    "perplexity": tabled,
    "dpo_reference": completed,
    "many_callers": called,
}
"""What to find in the output of the first command of each program."""


def test_the_list_of_examples_is_whole() -> None:
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    for file in (*PROGRAMS, EXAMPLES / "heat_map.ipynb"):
        assert f"[{file.name}]({file.name})" in listed


@pytest.mark.filterwarnings("default")  # what a kernel's own libraries say is not ours to mend
def test_the_notebook(top: Path) -> None:
    notebook: Any = nbformat.read(EXAMPLES / "heat_map.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(top)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    drawn = [output["data"]["text/html"] for output in outputs if "text/html" in output["data"]]
    assert len(drawn) == 4  # two heat maps, two frames
    assert drawn[0].count("title=") > 50  # a byte is a token here
