"""`mlxscore-server` as a child, for the time of one command."""

import importlib.util
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import IO

from mlxscore_cli.stop import Stop
from mlxscore_cli.terminal import stderr

DEFAULT = "default"
"""What stands for the default model."""

_FLAGS = ("--host", "127.0.0.1", "--port", "0", "--drain-timeout", "0")
_LOG = ("--log-level", "info", "--log-format", "text")
_LISTENING = re.compile(r"listening on (\S+)")
_READY = re.compile(r"\bready\b")
_SAID = "mlxscore-server: error: "
_END_SECONDS = 30.0


@contextmanager
def own_server(model: str) -> Generator[tuple[str, str]]:
    """URL and key of a server with this model, which ends with the block, or with this process."""
    if importlib.util.find_spec("mlxscore_server") is None:
        raise Stop("--model: the server is not installed: pip install 'mlxscore[server]'")
    # Nobody else on this machine is to use it.
    key = secrets.token_urlsafe()
    env = {name: value for name, value in os.environ.items() if name.upper() != _KEYS_FILE}
    env["MLXSCORE_API_KEY"] = key
    chosen = ("--model", model)
    if model == DEFAULT:
        chosen = ()
        env.pop("MLXSCORE_MODEL", None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mlxscore_cli.leashed", *_FLAGS, *_LOG, *chosen],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=env,
        # Ctrl-C is for the command, which then ends the server.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    lines: SimpleQueue[str | None] = SimpleQueue()
    # A pipe that nobody reads would fill, and the server stand still.
    reader = threading.Thread(target=_read, args=(process.stderr, lines), daemon=True)
    reader.start()
    try:
        with stderr().status(f"loading {model}"):
            address = _wait(lines)
        yield address, key
    finally:
        process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stderr.close()


_KEYS_FILE = "MLXSCORE_API_KEY_FILE"


def _read(log: IO[str], lines: "SimpleQueue[str | None]") -> None:
    for line in log:
        lines.put(line)
    lines.put(None)


def _wait(lines: "SimpleQueue[str | None]") -> str:
    """The server's URL, once it can score."""
    address = ""
    said: list[str] = []
    while (line := lines.get()) is not None:
        said.append(line.strip())
        if found := _LISTENING.search(line):
            address = found[1]
        elif address and _READY.search(line):
            return address
    errors = [line.removeprefix(_SAID) for line in said if line.startswith(_SAID)]
    reason = " ".join(errors or said[-1:])
    raise Stop(f"--model: the server did not start: {reason}")
