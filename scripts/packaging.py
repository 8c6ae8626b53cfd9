"""Builds the distribution, checks it, and installs it where nothing else is. For scripts/packaging.

Exit code 1, with the command that failed, where something is wrong.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "client/mlxscore_client/version.py").read_text("utf-8")
)
NOT_IN_THE_BASE = ["mlx", "mlx_lm", "numpy", "fastapi", "uvicorn", "transformers", "tokenizers"]
CLIENT = """
import importlib.util, sys
from importlib.metadata import version
import httpx, mlxscore_client

assert mlxscore_client.__version__ == version("mlxscore"), version("mlxscore")
answer = lambda request: httpx.Response(200, json={"status": "ok"})
with mlxscore_client.Client(transport=httpx.MockTransport(answer)) as client:
    assert client.health().status == "ok"
for name in sys.argv[1:]:
    assert importlib.util.find_spec(name) is None, f"{name} is installed"
    assert name not in sys.modules, f"{name} was imported"
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dist, place = Path(folder) / "dist", Path(folder) / "venv"
        run([sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)])
        (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive)])
        holds(wheel, archive)
        venv.create(place, with_pip=True)
        python = str(place / "bin" / "python")
        pinned = ["-c", str(ROOT / "constraints.txt")]
        run([python, "-m", "pip", "install", "-qq", "--no-compile", *pinned, str(wheel)])
        run([python, "-W", "error", "-c", CLIENT, *NOT_IN_THE_BASE])
        commands = place / "bin"
        without_the_extra(commands / "mlxscore-server", "server", 1)
        without_the_extra(commands / "mlxscore", "cli", 2)
        run([python, "-m", "pip", "install", "-qq", "--no-compile", *pinned, f"{wheel}[cli]"])
        run([str(commands / "mlxscore"), "score", "--help"])
        run([python, "-W", "error", "-c", CLIENT, *NOT_IN_THE_BASE])
    print(f"packaging: {wheel.name} and {archive.name} are whole; the client works on its own,")
    print("packaging: the command line with its extra")


def holds(wheel: Path, archive: Path) -> None:
    """What must be there, and what must not."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = {
        "mlxscore_client/py.typed",
        "mlxscore_server/cli.py",
        "mlxscore_server/page/index.html",
    }
    missing = files - inside
    tops = {name.partition("/")[0] for name in inside if ".dist-info/" not in name}
    with tarfile.open(archive) as opened:
        sources = {name.partition("/")[2] for name in opened.getnames()}
    missing |= {"LICENSE", "README.md", "client/mlxscore_client/version.py"} - sources
    if missing or tops != {"mlxscore_client", "mlxscore_cli", "mlxscore_server"}:
        sys.exit(f"packaging: missing: {sorted(missing)}; the wheel's packages: {sorted(tops)}")
    if VERSION is None or f"-{VERSION[1]}-" not in wheel.name:
        sys.exit(f"packaging: {wheel.name} has another version than mlxscore_client.version")


def without_the_extra(command: Path, extra: str, code: int) -> None:
    """The command is there, and says what it lacks."""
    done = subprocess.run([command], capture_output=True, text=True, env=environment())
    if done.returncode != code or f"pip install 'mlxscore[{extra}]'" not in done.stderr:
        said = f"{done.returncode} {done.stderr}"
        sys.exit(f"packaging: {command.name} without its extra: {said}")


def run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )
    if done.returncode:
        sys.exit(f"packaging: {' '.join(command[:6])} ... failed:\n{done.stdout[-4000:]}")


def environment() -> Mapping[str, str]:
    """Without a path to the sources: what is installed must do."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    main()
