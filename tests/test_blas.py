"""Each case in a process of its own: a library stays loaded, and the order of imports matters."""

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

import mlxscore_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only MLX's CPU build on Linux")

# A correct cblas_sgemm that counts its calls.
COUNTING = """
int calls = 0;
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    calls++;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int t = 0; t < k; t++)
                sum += (ta == 111 ? a[i * lda + t] : a[t * lda + i])
                     * (tb == 111 ? b[t * ldb + j] : b[j * ldb + t]);
            c[i * ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
        }
}
"""
WRONG = COUNTING.replace("alpha * sum", "alpha * sum + 1")
ABORTS_ON_LOAD = """
#include <stdlib.h>
__attribute__((constructor)) static void start(void) { abort(); }
void cblas_sgemm(void) {}
"""
ABORTS_ON_CALL = """
#include <stdlib.h>
void cblas_sgemm(void) { abort(); }
"""
NO_SYMBOL = "int nothing;"

LOAD = """
import logging, sys
from pathlib import Path
from mlxscore_server import blas
from mlxscore_server.errors import StartupError
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
explicit = Path(sys.argv[2]) if len(sys.argv) > 2 else None
try:
    library = blas.load_blas(explicit, Path(sys.argv[1]))
except StartupError as error:
    sys.exit(f"StartupError {error}")
print("LIBRARY", library)
"""
USE_MLX = """
import ctypes
import numpy as np
import mlx.core as mx
a, b = np.random.default_rng(0).standard_normal((2, 300, 300), np.float32)
error = np.abs(np.array(mx.array(a) @ mx.array(b)) - a.astype(float) @ b).max()
assert error < 1e-3, error
"""
WHICH_SGEMM = """
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
info = Info()
whole = ctypes.CDLL(None)
assert whole.dladdr(ctypes.cast(whole.cblas_sgemm, ctypes.c_void_p), ctypes.byref(info))
assert info.file.decode() == library, info.file
print("SGEMM", info.file.decode())
"""


def run(
    code: str, *arguments: Path | str, python: Path | str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def compiled(path: Path, source: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    command = ["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=textwrap.dedent(source), text=True, check=True)
    return path


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose environment holds this server's code and no other package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "mlxscore_server").symlink_to(Path(mlxscore_server.__file__).parent)
    return folder / "bin" / "python"


def test_the_servers_own_library_is_what_mlx_multiplies_with(tmp_path: Path) -> None:
    done = run(LOAD + USE_MLX + WHICH_SGEMM, tmp_path)  # a cold cache

    assert done.returncode == 0, done.stderr
    assert f"SGEMM {tmp_path / 'blas'}" in done.stdout
    assert "INFO BLAS:" in done.stderr and "(scipy-openblas32" in done.stderr
    assert len(list((tmp_path / "blas").iterdir())) == 1


def test_a_given_library_is_called_by_mlx(tmp_path: Path) -> None:
    library = compiled(tmp_path / "counting.so", COUNTING)
    count = "\nprint('CALLS', ctypes.c_int.in_dll(ctypes.CDLL(library), 'calls').value)"

    done = run(LOAD + USE_MLX + count, tmp_path, library)

    assert done.returncode == 0, done.stderr
    assert f"BLAS: {library} (MLXSCORE_BLAS)" in done.stderr
    assert "CALLS 1" in done.stdout


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (None, "there is no such file"),
        ("text", "invalid ELF header"),
        (NO_SYMBOL, "undefined symbol: cblas_sgemm"),
        (ABORTS_ON_LOAD, "it crashes (SIGABRT in a child process)"),
        (ABORTS_ON_CALL, "it crashes (SIGABRT in a child process)"),
        (WRONG, "gives wrong products"),
    ],
)
def test_a_given_library_that_does_not_work_ends_the_start(
    tmp_path: Path, source: str | None, complaint: str
) -> None:
    library = tmp_path / "given.so"
    if source == "text":
        library.write_text("not a library, but longer than an ELF header would have to be " * 9)
    elif source is not None:
        compiled(library, source)

    done = run(LOAD, tmp_path, library)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"StartupError MLXSCORE_BLAS={library}: ")
    assert complaint in line


def test_the_copy_is_kept_and_a_damaged_one_made_anew(tmp_path: Path) -> None:
    assert run(LOAD, tmp_path).returncode == 0
    (copy,) = (tmp_path / "blas").iterdir()
    good, inode = copy.read_bytes(), copy.stat().st_ino

    assert run(LOAD, tmp_path).returncode == 0
    assert copy.stat().st_ino == inode

    copy.write_bytes(good[:-1000])
    done = run(LOAD, tmp_path)
    assert done.returncode == 0 and "is damaged; making it anew" in done.stderr
    assert copy.read_bytes() == good


def test_two_starts_at_once_from_a_cold_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD + USE_MLX, str(tmp_path)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    (copy,) = (tmp_path / "blas").iterdir()
    assert all(f"LIBRARY {copy}" in output for output, _ in outputs)


def test_system_libraries_that_crash_are_passed_over(tmp_path: Path, bare_python: Path) -> None:
    libraries = tmp_path / "lib"
    compiled(libraries / "libopenblas.so.0", ABORTS_ON_LOAD)
    compiled(libraries / "libopenblasp.so.0", ABORTS_ON_CALL)
    compiled(libraries / "libopenblas.so", WRONG)
    compiled(libraries / "libblis.so.4", COUNTING)

    done = run(LOAD, tmp_path, python=bare_python, LD_LIBRARY_PATH=str(libraries))

    assert done.returncode == 0, done.stderr
    assert "LIBRARY libblis.so.4" in done.stdout
    crash = "it crashes (SIGABRT in a child process)"
    assert f"WARNING BLAS: not using libopenblas.so.0 (system): {crash}" in done.stderr
    assert f"WARNING BLAS: not using libopenblasp.so.0 (system): {crash}" in done.stderr
    assert "WARNING BLAS: not using libopenblas.so (system): gives wrong products" in done.stderr


def test_none_found_is_said_plainly(tmp_path: Path, bare_python: Path) -> None:
    # This machine may have one installed: it is looked for under other names here.
    renamed = LOAD.replace("explicit =", "blas._SYSTEM_LIBRARIES = ('libnone.so.0',)\nexplicit =")

    done = run(renamed, tmp_path, python=bare_python)

    assert done.returncode == 0, done.stderr
    assert "LIBRARY None" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("WARNING No optimised BLAS was found") and "MLXSCORE_BLAS" in line


def test_a_cache_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = run(LOAD, tmp_path / "file" / "cache")

    assert done.returncode == 0, done.stderr
    assert "WARNING BLAS: cannot use scipy-openblas32" in done.stderr


def test_after_mlx_it_is_too_late(tmp_path: Path) -> None:
    done = run("import mlx.core\n" + LOAD, tmp_path)

    assert "RuntimeError: bug in mlxscore" in done.stderr
