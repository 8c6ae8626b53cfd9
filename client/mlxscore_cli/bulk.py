"""A whole input file to OUT: skip what is done, score, write, tell how it goes."""

import hashlib
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxscore_cli.batches import Scorer
from mlxscore_cli.progress import progress
from mlxscore_cli.records import Record
from mlxscore_cli.sink import Sink
from mlxscore_cli.stop import Stop
from mlxscore_cli.terminal import print_error, print_json, printable, stdout
from mlxscore_cli.texts import STDIN
from mlxscore_client import Client

_CHUNK = 2**20


@dataclass(frozen=True)
class Input:
    """An opened input."""

    file: BinaryIO
    shown: str
    size: int | None
    """Bytes; None: nobody knows yet (a pipe)."""

    @classmethod
    @contextmanager
    def open(cls, name: str) -> "Generator[Input]":
        """The file of that name, or standard input. Raises Stop."""
        if name == STDIN:
            yield cls(sys.stdin.buffer, "standard input", None)
            return
        path = Path(name)
        try:
            file = path.open("rb")
        except OSError as error:
            raise Stop(f"{name}: {error.strerror}") from error
        with file:
            yield cls(file, name, path.stat().st_size if path.is_file() else None)

    def sha256(self) -> str | None:
        """Of the whole file; None of a pipe, which can be read once only."""
        if self.size is None:
            return None
        digest = hashlib.sha256()
        while chunk := self.file.read(_CHUNK):
            digest.update(chunk)
        self.file.seek(0)
        return digest.hexdigest()


def run(
    source: Input,
    read: Callable[[BinaryIO], Iterator[Record]],
    scorer: Scorer,
    client: Client,
    options: Mapping[str, Any],
    *,
    out: Path,
    finish: Callable[[Path, Path], None] | None = None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> int:
    """The exit code: 1 where a record failed. Raises Stop and the client's errors.

    `finish` makes OUT of the lines once all are there; without it they are OUT.
    """
    if resume and source.size is None:
        raise Stop(f"--resume: needs a file: {source.shown} cannot be read again from its start")
    digest = source.sha256()
    records = read(source.file)
    card = client.models().data[0]
    made_by = {
        "input_sha256": digest,
        "options": dict(options),
        "model": card.id,
        "system_fingerprint": card.system_fingerprint,
    }
    started = time.perf_counter()
    lines = out if finish is None else Path(f"{out}.jsonl")
    with Sink(out, lines, made_by, resume=resume, overwrite=overwrite) as sink:
        skipped = deque(islice(records, sink.resumed), maxlen=1)
        try:
            with progress(source.size, skipped[-1] if skipped else None) as tell:
                for record, outcome in scorer(records):
                    if isinstance(outcome, str):
                        sink.fail(record, outcome)
                    else:
                        sink.write(outcome)
                    tell(record)
        except BaseException:
            if source.size is not None:
                done = sink.scored + sink.failed
                print_error(f"stopped after {done:,} lines; the same with --resume goes on")
            raise
    if finish is not None:
        finish(lines, out)
    _sum_up(sink, time.perf_counter() - started, as_json)
    return 1 if sink.failed else 0


def _sum_up(sink: Sink, seconds: float, as_json: bool) -> None:
    here = sink.scored + sink.failed - sink.resumed
    if as_json:
        print_json(
            {
                "scored": sink.scored,
                "failed": sink.failed,
                "resumed": sink.resumed,
                "seconds": round(seconds, 3),
                "out": str(sink.out),
                "errors": str(sink.errors) if sink.failed else None,
            }
        )
        return
    before = f", {sink.resumed:,} of them before" if sink.resumed else ""
    rate = here / max(seconds, 1e-9)
    said = (
        f"{sink.scored:,} scored to {printable(str(sink.out))}{before}; "
        f"{seconds:,.1f} s, {rate:,.{0 if rate >= 10 else 1}f} lines/s"
    )
    if sink.failed:
        said += f"\n{sink.failed:,} failed: {printable(str(sink.errors))} says why"
    stdout().print(said, markup=False)
