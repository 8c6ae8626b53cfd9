"""The served path: a real server process with the default model, asked over HTTP."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from mlxscore_server.row import Row

START_SECONDS = 300
IDLE_SECONDS = 5.0


class Server:
    """`mlxscore-server` on a free port; entering waits until it is healthy."""

    def __init__(self) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlxscore_server.cli", "--port", "0"], stderr=self._log
        )
        self.url = ""
        self.start_seconds = 0.0

    def __enter__(self) -> "Server":
        try:
            while not self._healthy():
                if self._process.poll() is not None or self._age() > START_SECONDS:
                    raise RuntimeError(f"the server did not start:\n{self._logged()}")
                time.sleep(0.01)
        except BaseException:
            self._stop()
            raise
        self.start_seconds = self._age()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def figures(self) -> dict[str, float]:
        found = {"process start to healthy, s": self.start_seconds}
        idle = self._idle_cpu_seconds()
        return found if idle is None else found | {"processor time in 5 idle s, s": idle}

    def _idle_cpu_seconds(self) -> float | None:
        """Processor seconds used in 5 s of doing nothing; None where there is no /proc."""
        time.sleep(1.0)
        before = self._cpu_seconds()
        time.sleep(IDLE_SECONDS)
        after = self._cpu_seconds()
        return None if before is None or after is None else after - before

    def _cpu_seconds(self) -> float | None:
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.exists():
            return None
        # After the name, which may hold anything: state is field 3, utime 14, stime 15.
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _healthy(self) -> bool:
        if not self.url:
            found = re.search(r"http://127\.0\.0\.1:\d+", self._logged())
            self.url = found.group(0) if found else ""
            return False
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    def _age(self) -> float:
        return time.perf_counter() - self._started

    def _logged(self) -> str:
        return Path(self._log.name).read_text(encoding="utf-8")

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()


def complete(url: str, rows: Sequence[Row]) -> int:
    """One /v1/completions with all rows as prompts, as lm-evaluation-harness asks; its bytes."""
    body = {"prompt": [row.ids.tolist() for row in rows], "echo": True, "max_tokens": 1}
    answer = httpx.post(f"{url}/v1/completions", json=body | {"logprobs": 1}, timeout=None)
    if answer.status_code != 200:
        raise RuntimeError(f"the server answered {answer.status_code}: {answer.text[:500]}")
    return len(answer.content)


def tokenize(url: str) -> Callable[[], None]:
    """Asks for a short text's ids, over one connection."""
    client = httpx.Client(base_url=url)

    def ask() -> None:
        answer = client.post("/tokenize", json={"prompt": "The capital of France is Paris."})
        answer.raise_for_status()

    return ask
