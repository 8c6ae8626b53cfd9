"""docs/cli.md: each command with the output below it, on the default model."""

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

pytest.importorskip("typer", reason="typer is not installed (the extra cli)")

from mlxscore_cli import command

PAGE = (Path(__file__).parent.parent / "docs" / "cli.md").read_text("utf-8")
_FILE = re.compile(r"`([a-z0-9-]+\.(?:jsonl|csv|txt))`[^`]*\n\n```\n(.*?)```", re.DOTALL)
_EXAMPLE = re.compile(r"```sh\n((?:mlxscore|cat) [^`]*?)\n```\n```\n(.*?)```", re.DOTALL)
# Of the machine, and of the moment.
_VARIES = re.compile(
    r"; [\d.]+ s, .* lines/s|^http.*: ok \(.*ms\)|^(system fingerprint|layout|default model) .*",
    re.MULTILINE,
)
_NUMBER = re.compile(r"-?\d+\.\d+")
TOLERANCE = 2e-3


def test_the_examples(
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MLXSCORE_BASE_URL", server.url)
    # A width that whoever runs the tests has set is not a page's.
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    for name, content in _FILE.findall(PAGE):
        Path(name).write_text(content, "utf-8")
    handler = signal.getsignal(signal.SIGTERM)
    examples = _EXAMPLE.findall(PAGE)
    assert len(examples) >= 12
    try:
        for line, wanted in examples:
            program, *argv = shlex.split(line)
            if program == "cat":
                out = Path(argv[0]).read_text("utf-8")
            else:
                with pytest.raises(SystemExit):
                    command.main(argv)
                out, err = capfd.readouterr()
                assert err == "", line
            assert words(out) == words(wanted), line
            assert numbers(out) == pytest.approx(numbers(wanted), rel=TOLERANCE, abs=0.02), line
    finally:
        signal.signal(signal.SIGTERM, handler)


def words(text: str) -> list[str]:
    """All but numbers with a fraction, and what differs each time."""
    # How wide a column is depends on a path in it.
    return _NUMBER.sub("#", _VARIES.sub("", text)).replace("─", "").split()


def numbers(text: str) -> list[Any]:
    return [float(found) for found in _NUMBER.findall(_VARIES.sub("", text))]
