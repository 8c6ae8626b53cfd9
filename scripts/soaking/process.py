"""The server as a process, and a supervisor that starts it again whenever it ends."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

TESTS = Path(__file__).parents[2] / "tests"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Supervisor:
    """Runs `command --port PORT` until `stop`, as systemd would: it ends, it is started again."""

    command: list[str]
    log: Path
    port: int = field(default_factory=free_port)
    ends: Counter[str] = field(default_factory=Counter[str])
    """How often the process ended in which way, by what was sent to it."""
    unexpected: int = 0
    """How often it ended in a way that it should not have."""
    started: float = 0.0
    generation: int = 0
    _process: asyncio.subprocess.Process | None = None
    _sent: signal.Signals | None = None
    _stopping: bool = False
    _task: "asyncio.Task[None] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    async def start(self) -> None:
        """Return when it scores."""
        self._task = asyncio.create_task(self._supervise())
        await self.ready()

    async def ready(self) -> None:
        """Wait until it scores. Asks again and again: the process behind the port changes."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            while self._task is not None and not self._task.done():
                try:
                    if (await client.get("/health")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        raise RuntimeError(f"the server does not start; see {self.log}")

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to the process that runs now."""
        if self.pid is not None and self._process is not None:
            self._sent = sign
            self._process.send_signal(sign)

    async def stop(self) -> None:
        """SIGTERM, and no new start."""
        self._stopping = True
        self.send(signal.SIGTERM)
        if self._task is not None:
            await self._task

    async def _supervise(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("MLXSCORE_")}
        with self.log.open("ab") as log:
            while not self._stopping:
                self._sent = None
                self._process = await asyncio.create_subprocess_exec(
                    *self.command, "--port", str(self.port), stderr=log, stdout=log, env=env
                )
                self.started, self.generation = time.monotonic(), self.generation + 1
                self._note(await self._process.wait())
                if self._sent is None and self._process.returncode == 2:
                    return  # it will not start the next time either

    def _note(self, code: int) -> None:
        sent = self._sent.name if self._sent else "nothing"
        self.ends[f"{sent} -> exit code {code}"] += 1
        right = {signal.SIGTERM: 0, signal.SIGKILL: -signal.SIGKILL}
        if self._sent is None or code != right[self._sent]:
            self.unexpected += 1


def steady_command(seconds_per_token: float) -> list[str]:
    """The model by formula."""
    return [sys.executable, str(TESTS / "steady_server.py"), str(seconds_per_token)]


def real_command() -> list[str]:
    """The default model."""
    return [sys.executable, "-m", "mlxscore_server.cli"]
