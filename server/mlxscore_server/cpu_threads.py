"""All cores for numpy on a CPU: parts of a job are handed out to threads, one at a time.

numpy lets go of the interpreter while it computes, so threads help; its matrix products would start
threads of their own in each of ours, which `single_threaded_products` prevents.
"""

import ctypes
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

Part = TypeVar("Part")

_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "")


def num_threads() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, num_threads() - 1), thread_name_prefix="mlxscore-numpy")


def spread(work: Callable[[Iterator[Part]], None], parts: Sequence[Part]) -> None:
    """Let as many threads as there are cores `work`, each on the parts that it takes; ends when all
    parts are done. The caller is one of the threads. Raises what any of them raised."""
    if not parts:
        return
    # The interpreter lets only one thread at a time into a list's iterator.
    taken = iter(parts)

    def quietly() -> None:
        # Overflow is for those who read the answer, as after MLX's own functions.
        with np.errstate(all="ignore"):
            work(taken)

    others = [_helpers().submit(quietly) for _ in range(min(num_threads(), len(parts)) - 1)]
    try:
        quietly()
    finally:
        for _ in taken:  # after an error nobody need go on
            pass
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error


@contextmanager
def single_threaded_products() -> Generator[None]:
    """numpy's own BLAS, where its wheel brings one, computes each product on one thread.

    Not the BLAS that MLX multiplies with: that is another library.
    """
    changed: list[tuple[Callable[[int], None], int]] = []
    for get, set_ in _blas_threads():
        changed.append((set_, get()))
        set_(1)
    try:
        yield
    finally:
        for set_, before in changed:
            set_(before)


def _blas_threads() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """How the OpenBLAS that lies beside numpy is asked for its number of threads, and told it."""
    found: list[tuple[Callable[[], int], Callable[[int], None]]] = []
    for path in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*.so*"):
        library = ctypes.CDLL(str(path))
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                set_ = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                if get is not None and set_ is not None:
                    set_.restype = None
                    found.append((get, set_))
    return found
