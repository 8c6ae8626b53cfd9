"""The environment of peers that this project does not need."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers import PeerError

_PACKAGES = Path(__file__).with_name("peers.txt")


def python_with_peers(cache: Path, given: Path | None) -> Path:
    """A Python that has torch and transformers: the one given, this one, or one made for the bench."""
    if given is not None:
        return given
    if find_spec("torch") and find_spec("transformers"):
        return Path(sys.executable)
    folder = cache / "bench-peers"
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = f"{_PACKAGES.read_text(encoding='utf-8')}\n{sys.version}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"... installing the peers into {folder} (once)", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
        _run([*pip, "--disable-pip-version-check", "-r", str(_PACKAGES)])
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise PeerError(f"the peers cannot be installed: {said[-1][:300]}")
