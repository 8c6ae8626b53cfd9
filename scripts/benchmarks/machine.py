"""The machine: what it is, its BLAS, how fast MLX multiplies on it. MLX is imported late."""

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mlxscore_server import blas


def cache_dir() -> Path:
    """Where the server keeps the default model and its BLAS."""
    if given := os.environ.get("MLXSCORE_CACHE_DIR"):
        return Path(given)
    try:
        import platformdirs
    except ImportError:  # a machine without the server extra
        return Path.home() / ".cache" / "mlxscore"
    return Path(platformdirs.user_cache_dir("mlxscore"))


def load_blas(cache: Path) -> str | None:
    """As the server does at its start; None: MLX's own."""
    given = os.environ.get("MLXSCORE_BLAS")
    return blas.load_blas(Path(given) if given else None, cache)


def describe(device: str, blas_library: str | None) -> dict[str, str]:
    import mlx.core as mx

    name = "cpu" if device == "cpu" else str(mx.device_info().get("device_name", device))
    blas_name = Path(blas_library).name if blas_library else "MLX's own"
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(_cores()),
        "device": name,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "BLAS": blas_name if device == "cpu" else "not used",
    }


def matmul(on_cpu: bool) -> dict[str, float]:
    """GFLOP/s of square products, best of ten."""
    import mlx.core as mx

    sizes = (1024, 2048) if on_cpu else (8192,)
    dtype = mx.float32 if on_cpu else mx.bfloat16
    found: dict[str, float] = {}
    for n in sizes:
        a = mx.random.normal((n, n), dtype=dtype)
        b = mx.random.normal((n, n), dtype=dtype)
        mx.eval(a, b)
        seconds = best_of(10, lambda a=a, b=b: mx.eval(a @ b))
        found[f"{'float32' if on_cpu else 'bfloat16'} {n}"] = 2 * n**3 / seconds / 1e9
    return found


def memory_bytes() -> int:
    """What the device has: the GPU's own memory, or the machine's."""
    import mlx.core as mx

    info = mx.device_info()
    for key in ("total_memory", "memory_size"):
        if key in info:
            return int(info[key])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def best_of(repeats: int, fn: Callable[[], object]) -> float:
    """Seconds, after one call that does not count."""
    fn()
    return min(timed(fn) for _ in range(repeats))


def timed(fn: Callable[[], object]) -> float:
    started = time.perf_counter()
    fn()
    return time.perf_counter() - started


class Others:
    """How busy other processes keep the machine meanwhile; our children count once they are waited
    for."""

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> str:
        """Of all cores' time since the start."""
        wall, busy, ours = (b - a for a, b in zip(self._before, self._now(), strict=True))
        if busy == 0:
            return "unknown"
        return f"{max(0.0, busy - ours) / wall / (os.cpu_count() or 1):.0%} of the cores"

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: of the clock, of all cores at work, of us at work."""
        times, busy = os.times(), 0.0
        if sys.platform == "linux":
            line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
            ticks = user + nice + system + irq + softirq + steal
            busy = ticks / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, sum(times[:4])


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def version(distribution: str) -> str:
    """As installed, else "unknown"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
