"""Contestants in processes of their own."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.rows_file import Scores, read_scores

_HERE = Path(__file__).parent


class PeerError(Exception):
    """What a peer said, in one line."""


@dataclass(frozen=True)
class Pass:
    """One pass over rows."""

    seconds: float
    peak_bytes: int | None = None
    """Beyond the weights; None where nobody counts it."""
    scores: Scores | None = None


class Process:
    """A peer's process, from its start on; `ready` waits until its model is loaded."""

    def __init__(self, script: str, python: Path, options: dict[str, Any]) -> None:
        self._log: IO[str] = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        paths = [str(_HERE.parent), str(_HERE), *sys.path]
        # Its own environment's packages only, unless it is ours.
        shared = {"PYTHONPATH": os.pathsep.join(paths)} if _is_ours(python) else {}
        self._process = subprocess.Popen(
            [str(python), str(_HERE / script), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | shared,
        )
        self._name = script
        self._notes: dict[str, str] | None = None

    def ready(self) -> dict[str, str]:
        """Its contestants and what they are. Raises PeerError."""
        if self._notes is None:
            self._notes = self._answer()["notes"]
        return self._notes

    def run(self, way: str, rows: Path) -> Pass:
        """Raises PeerError."""
        scores = rows.with_suffix(f".{way}.npz")
        found = self._ask(way=way, rows=str(rows), scores=str(scores))
        read = read_scores(scores) if found["scored"] else None
        return Pass(found["seconds"], found["peak_bytes"], read)

    def release(self) -> None:
        """Leave the device's memory to others."""
        self._ask(release=True)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()  # and a second stop does nothing

    def _ask(self, **what: Any) -> dict[str, Any]:
        self.ready()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the answer says so
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = Path(self._log.name).read_text(encoding="utf-8").strip().splitlines() or [""]
            raise PeerError(f"{self._name} ended ({self._process.wait()}): {said[-1][:300]}")
        found = json.loads(line)
        if "error" in found:
            raise PeerError(found["error"])
        return found


def _is_ours(python: Path) -> bool:
    return str(python) == sys.executable
