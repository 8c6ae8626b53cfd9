"""The real server as a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Self

TESTS = Path(__file__).parent
REAL = (sys.executable, "-m", "mlxscore_server.cli")
FAKE = (sys.executable, str(TESTS / "fake_server.py"), "ok")
_LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")


class ServerProcess:
    """`mlxscore-server`, or what `command` runs, on a free port. Enter it to wait until it is ready; leaving
    it sends SIGTERM."""

    def __init__(
        self, *flags: str, command: Sequence[str] = REAL, env: Mapping[str, str] = os.environ
    ) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*command, "--port", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.url = ""
        self._unread: SimpleQueue[str | None] = SimpleQueue()
        # A pipe that nobody reads would fill, and the server stand still.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def _stderr(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr

    def _read(self) -> None:
        for line in self._stderr:
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read the log until a line holds the pattern; fail with the log if the process ends first."""
        while (line := self._unread.get()) is not None:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"the server ended without {pattern!r}:\n{''.join(self.lines)}")

    def __enter__(self) -> Self:
        self.url = f"http://127.0.0.1:{self.wait_for(_LISTENING.pattern).group(1)}"
        self.wait_for(r"\bready\b")
        return self

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(sign)
        code = self.process.wait(timeout=60)
        self._reader.join()
        return code

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        self._stderr.close()
