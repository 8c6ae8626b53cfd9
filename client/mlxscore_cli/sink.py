"""Where results go: OUT, `OUT.errors.jsonl` beside it, and what made them in `OUT.run.json`.

Results and errors are written in the order of the input, each whole line as soon as it is there. So the
two files together always stand for the first so many records, and a run that was killed goes on behind
them: only a last line that was cut off is to be taken away.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from mlxscore_cli.records import Record
from mlxscore_cli.stop import Stop

_CHUNK = 2**20


class Sink:
    """The files of one run."""

    def __init__(
        self,
        out: Path,
        lines: Path,
        made_by: Mapping[str, Any],
        *,
        resume: bool,
        overwrite: bool,
    ) -> None:
        """`lines` is the file that is written to: OUT, or what OUT is made of once all is there.
        `made_by` is what the results depend on; a run is resumed only by one with the same.

        Raises Stop where there is something that is not to be lost.
        """
        self.out, self.errors = out, Path(f"{out}.errors.jsonl")
        self._run = Path(f"{out}.run.json")
        wanted = json.dumps(made_by, indent=2) + "\n"
        if resume and overwrite:
            raise Stop("--resume and --overwrite: give one of them")
        try:
            if (out.exists() or lines.exists()) and not overwrite:
                if not resume:
                    raise Stop(
                        f"--out: {out} exists: --resume goes on with it, --overwrite begins anew"
                    )
                if not lines.exists():
                    raise Stop(f"--resume: {out} is finished; --overwrite begins anew")
                _same(self._run, made_by, out)
            else:
                for stale in (out, lines, self.errors):
                    stale.unlink(missing_ok=True)
                self._run.write_text(wanted, encoding="utf-8")
            self._file = _appendable(lines)
            _lock(self._file, out)
            self.scored = _cut_and_count(self._file)
            self._errors: BinaryIO | None = None
            self.failed = 0
            if self.errors.exists():
                self._errors = _appendable(self.errors)
                self.failed = _cut_and_count(self._errors)
        except OSError as error:
            raise Stop(f"--out: {error.filename or out}: {error.strerror}") from error
        self.resumed = self.scored + self.failed

    def write(self, fields: Mapping[str, Any]) -> None:
        """A record's result."""
        self._file.write(_line(fields))
        self._file.flush()
        self.scored += 1

    def fail(self, record: Record, error: str) -> None:
        """A record that has no result."""
        if self._errors is None:
            self._errors = _appendable(self.errors)
        self._errors.write(
            _line({"index": record.index, "line": record.line, "id": record.id, "error": error})
        )
        self._errors.flush()
        # After a power cut it must not be here that less is left than in OUT.
        os.fsync(self._errors.fileno())
        self.failed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._file.close()
        if self._errors is not None:
            self._errors.close()


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _appendable(path: Path) -> BinaryIO:
    return path.open("a+b")


def _lock(file: BinaryIO, out: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Stop(f"--out: another run is writing to {out}") from error


def _cut_and_count(file: BinaryIO) -> int:
    """Cut off a last line that is not whole; how many lines are left."""
    lines = whole = place = 0
    file.seek(0)
    while chunk := file.read(_CHUNK):
        lines += chunk.count(b"\n")
        if (last := chunk.rfind(b"\n")) >= 0:
            whole = place + last + 1
        place += len(chunk)
    file.truncate(whole)
    return lines


def _same(run: Path, made_by: Mapping[str, Any], out: Path) -> None:
    try:
        before: Any = json.loads(run.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Stop(
            f"--resume: there is no {run}, which says what {out} was made of; --overwrite begins anew"
        ) from error
    except ValueError as error:
        raise Stop(f"--resume: {run} is damaged; --overwrite begins anew") from error
    now: Any = json.loads(json.dumps(made_by))
    for name in now:
        if before.get(name) != now[name]:
            raise Stop(
                f"--resume: {out} was made with another {name} ({before.get(name)!r}, now "
                f"{now[name]!r}); --overwrite begins anew"
            )
