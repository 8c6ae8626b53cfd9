"""A model that scores rows: plan them, run them, answer. Knows no HTTP, no queue."""

import time
from collections.abc import Sequence
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from mlxscore_server import attention, cpu_kernels
from mlxscore_server.device import Device
from mlxscore_server.errors import MlxscoreError
from mlxscore_server.forward import Forward
from mlxscore_server.gauges import note_memory
from mlxscore_server.head import Head
from mlxscore_server.kept import Kept
from mlxscore_server.plan import MicroBatch, cut_packed, cut_padded
from mlxscore_server.remainder import remainder
from mlxscore_server.row import Row, RowScore
from mlxscore_server.stats import Stats
from mlxscore_server.tree import Tree, grow
from mlxscore_server.window import Window

Layout = Literal["packed", "left-padded", "equal-length"]


class BatchScorer:
    """Scores rows with a resident model. Make and use it on one thread.

    `layout` and `forward.mask_form` are what the self-check proved for this model.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        *,
        float32_head: bool = True,
        max_batch_tokens: int | None = None,
        layout: Layout = "left-padded",
        share_prefixes: bool = True,
        kept_bytes: int = 0,
    ) -> None:
        self.forward = Forward(model, device, float32_head=float32_head)
        self.kept = Kept(kept_bytes)
        self.layout: Layout = layout
        self.max_batch_tokens = max_batch_tokens or device.max_batch_tokens
        self.share_prefixes = share_prefixes
        self.stats = Stats()
        self._device = device
        attention.install()
        self.numpy_kernels = False
        """Whether models' functions run in numpy (CPU only)."""
        self.use_numpy_kernels(device.numpy_kernels)

    @property
    def head(self) -> Head:
        return self.forward.head

    def use_numpy_kernels(self, on: bool) -> None:
        """Have models' functions run in numpy, or in MLX again."""
        if on and not self.numpy_kernels:
            cpu_kernels.install()
        elif self.numpy_kernels and not on:
            cpu_kernels.uninstall()
        self.numpy_kernels = on

    @property
    def overlaps(self) -> bool:
        """Whether the device works by itself; on a CPU the caller's thread does the work."""
        return self._device.name != "cpu"

    def plan(self, rows: Sequence[Row]) -> Window:
        """Rows as a window of micro-batches that suit this model and device."""
        started = time.perf_counter()
        packed = self.layout == "packed"
        node_cost = self._device.node_cost
        tree = grow(
            rows,
            node_cost=node_cost,
            longest=self.max_batch_tokens if packed else 2**31,
            share=self.share_prefixes and packed,
        )
        left = remainder(tree, rows, self.kept, node_cost)
        batches = self._cut(left.tree)
        window = Window(
            self.forward,
            self.kept,
            rows,
            left,
            batches,
            pad=self.layout == "left-padded",
            stats=self.stats,
        )
        self.stats.planning_seconds += time.perf_counter() - started
        return window

    def start_counting(self) -> None:
        """Forget what the load has tried out."""
        self.stats = Stats()
        mx.reset_peak_memory()
        note_memory(self.stats, self.kept)

    def _cut(self, tree: Tree) -> list[MicroBatch]:
        if self.layout == "packed":
            return cut_packed(tree, self.max_batch_tokens)
        return cut_padded(
            tree,
            max_batch_tokens=self.max_batch_tokens,
            batch_overhead=self._device.batch_overhead,
            pad=self.layout == "left-padded",
            length_multiple=self._device.length_multiple,
        )

    def score_rows(self, rows: Sequence[Row]) -> list[RowScore | MlxscoreError]:
        """Each row's score, in order; NonFiniteLogits for a row whose logits are NaN or infinite."""
        answers: dict[int, RowScore | MlxscoreError] = {}
        window = self.plan(rows)
        try:
            before = None
            for step in range(window.num_steps):
                started = window.start(step)
                if before is not None:
                    answers.update(window.finish(before))
                before = started
            if before is not None:
                answers.update(window.finish(before))
        finally:
            window.close()
        return [answers[i] for i in range(len(rows))]

    def free(self) -> None:
        """Drop what is kept and MLX's freed buffers. Windows that are open may only be closed any more."""
        self.kept.clear()
        mx.clear_cache()

    def lighten(self, max_batch_tokens: int) -> None:
        """Memory ran out: smaller micro-batches from now on, and half as much is kept."""
        self.max_batch_tokens = max_batch_tokens
        self.kept.max_bytes //= 2

    def close(self) -> None:
        """Give the model its own head back and the thread's MLX state up. Last call on the thread."""
        self.kept.clear()
        self.use_numpy_kernels(False)
        attention.uninstall()
        self.head.close()
        mx.synchronize()
        mx.clear_cache()
        mx.clear_streams()
