"""All contestants with one model, and how rows are handed to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from benchmarks.loads import LONG, Load, Maker
from benchmarks.models import Weights
from benchmarks.ours import Ours
from benchmarks.peers import Pass, Process
from benchmarks.result import CONTESTANTS, Result
from benchmarks.rows_file import write_rows
from mlxscore_server.row import Row

OURS = CONTESTANTS[:3]
Turn = Callable[[], Pass]

_UNSHARED = ("uniform", "shorter", "mixed", "echo", "1x512", "8x128", "32x32")
"""The loads of which "own" does the same work as ours."""

_ROW_BY_ROW = ("own", "evaluate")
"""Contestants for which each length is a shape of its own."""


@dataclass
class Field:
    ours: Ours
    weights: Weights
    scratch: Path
    on_gpu: bool
    memory_bytes: int
    """The device's."""
    peers: dict[str, Process] = field(default_factory=dict[str, Process])
    """By contestant; several may share a process."""

    def turns(self, load: Load, contestants: Sequence[str], result: Result) -> dict[str, Turn]:
        """A pass of each contestant; `result` is told why one has none."""
        turns: dict[str, Turn] = {}
        rows = self.file_of(load)
        for name in contestants:
            if name in OURS:
                turns[name] = self.turn_of_ours(name, load.rows)
            elif name == "floor" and name in self.peers:
                turns[name] = self._floor(load.name, result.computed_tokens)
            elif self.on_gpu and load.name == "mixed" and name in _ROW_BY_ROW:
                result.failures[name] = "not run: a GPU builds a graph for each of its many lengths"
            elif name in self.peers and (name != "own" or load.name in _UNSHARED):
                turns[name] = self._peer(name, rows)
        longest = max(row.num_inputs for row in load.rows)
        logits = 4 * self.ours.vocab_size * max(self.ours.max_batch_tokens, longest)
        if "naive" in turns and 4 * logits > self.memory_bytes / 2:  # four copies of them
            result.failures["naive"] = f"its logits alone are {logits / 1e9:.0f} GB"
            del turns["naive"]
        return turns

    def turn_of_ours(self, name: str, rows: list[Row]) -> Turn:
        way = getattr(self.ours, name)

        def turn() -> Pass:
            mx.reset_peak_memory()
            seconds, scores = way(rows)
            return Pass(seconds, mx.get_peak_memory() - self.ours.weight_bytes, scores)

        return turn

    def own_seconds(self, rows: list[Row]) -> float:
        """The model's own forward pass on rows, outside of any load."""
        return self._peer("own", self._file("other", rows))().seconds

    def file_of(self, load: Load) -> Path:
        return self._file(load.name, load.rows)

    def release(self, name: str) -> None:
        """The contestant's device memory is for the others now."""
        if not self.on_gpu:
            return
        if name in self.peers:
            self.peers[name].release()
        elif name != "cold":  # what is kept is for the warm pass that follows
            self.ours.release()

    def stop_peers(self) -> None:
        """Their memory is needed for good."""
        for process in set(self.peers.values()):
            process.stop()
        self.peers.clear()
        self.ours.release()

    def _peer(self, name: str, rows: Path) -> Turn:
        return lambda: self.peers[name].run("own" if name == "floor" else name, rows)

    def _floor(self, load: str, computed_tokens: int) -> Turn:
        """As many plain tokens as ours computes, as rows of 512 through the model's own body."""
        length = min(LONG, max(1, computed_tokens))
        num_rows = max(1, computed_tokens // length)
        maker = Maker(self.ours.vocab_size, 1.0)
        rows = [maker.row(length, 1) for _ in range(num_rows)]
        turn = self._peer("floor", self._file(f"{load}.floor", rows))

        def scaled() -> Pass:
            found = turn()
            return Pass(found.seconds * computed_tokens / (num_rows * length), found.peak_bytes)

        return scaled

    def _file(self, name: str, rows: list[Row]) -> Path:
        path = self.scratch / f"{name}.npz"
        write_rows(path, [(row.ids, row.start) for row in rows])
        return path
