"""`steady_server` as a process for tests: its log is kept, and read so that it never blocks."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
# Not this machine's own settings.
ENV = {key: value for key, value in os.environ.items() if not key.startswith("MLXSCORE_")}


class Steady:
    """`url` answers once `steady` gives it out; `lines` is the log so far."""

    def __init__(self, *flags: str, seconds_per_token: float = 0.0) -> None:
        self.lines: list[str] = []
        self.url = ""
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(TESTS / "steady_server.py"),
                str(seconds_per_token),
                "--port",
                "0",
                *flags,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait()
        assert self.url, "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"listening on (\S+)", line):
                self.url = found.group(1)
            if re.search(r"\bready\b", line):
                self._ready.set()
        self._ready.set()

    def troubles(self) -> list[str]:
        """What the log should never hold, whatever clients send."""
        return [line for line in self.lines if re.search(r"Traceback|ERROR|CRITICAL", line)]

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextmanager
def steady(*flags: str, seconds_per_token: float = 0.0) -> Iterator[Steady]:
    server = Steady(*flags, seconds_per_token=seconds_per_token)
    try:
        yield server
    finally:
        server.end()
