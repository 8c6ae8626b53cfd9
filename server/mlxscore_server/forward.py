"""One micro-batch through the model, in either layout, and its logits read. Knows no queue, no window."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from mlxscore_server.arrays import to_mlx
from mlxscore_server.blocks import cut
from mlxscore_server.device import Device
from mlxscore_server.head import Head
from mlxscore_server.kept import KeptRows
from mlxscore_server.logits import Reading, read_mlx, read_numpy
from mlxscore_server.packed import LayerRows, PackedBatch
from mlxscore_server.padding import MaskForm, PaddedBatch, right_justified, stand_ins
from mlxscore_server.reading import Wanted
from mlxscore_server.row import Ids, Int64s


class Forward:
    """A model with its head split off, and how batches are given to it on this device."""

    def __init__(self, model: nn.Module, device: Device, *, float32_head: bool) -> None:
        self.head = Head(model, float32=float32_head)
        self.device = device
        self.mask_form: MaskForm = "additive"
        """Of left-padded batches."""
        self.chunk = max(1, device.logits_bytes // (4 * self.head.vocab_size))
        """Rows of logits that are held at once."""
        self._template: list[Any] = list(make_prompt_cache(model))
        self._read: Callable[[mx.array, Wanted], Reading] = (
            read_numpy if device.numpy_reads_logits else read_mlx
        )

    def padded(
        self, segments: Sequence[Ids], length: int, wanted: Int64s, *, pad: bool
    ) -> mx.array:
        """What the head would read, (W, D), at `wanted` of the segments' tokens (numbered one after
        the other), each segment padded on the left to `length`.

        Raises ValueError where there is padding and `pad` is False.
        """
        tokens, left_padding = right_justified(segments, length)
        cache = None
        if pad:
            shared = PaddedBatch(left_padding, length, self.head.dtype, self.mask_form)
            cache = stand_ins(self._template, shared)
        elif left_padding.any():
            raise ValueError("this model's rows must be of equal length in a micro-batch")
        places = np.flatnonzero(np.arange(length)[None, :] >= left_padding[:, None])
        return self.head.body(to_mlx(tokens), cache, to_mlx(places[wanted].astype(np.int32)))

    def packed(
        self,
        tokens: Ids,
        lengths: Int64s,
        starts: Int64s,
        parents: Int64s,
        continued: Sequence[NDArray[np.int32] | None],
        kept: KeptRows,
        wanted: Int64s,
    ) -> tuple[mx.array, list[LayerRows]]:
        """What the head would read at `wanted` of the nodes' tokens, (W, D), and the layers' keys and
        values of all tokens. `continued` is which of the kept rows each node without a parent here
        goes on from; the other arguments are as `blocks.cut` takes them."""
        batch = PackedBatch(
            tokens=tokens,
            positions=np.arange(len(tokens))
            - np.repeat(np.cumsum(lengths) - lengths - starts, lengths),
            blocks=cut(
                lengths,
                starts,
                parents,
                continued,
                self.device.block_costs,
                num_kept=kept.num_rows,
            ),
            kept=kept.layers,
            attend=self.device.attend,
            begin_every=self.device.begin_every,
        )
        cache = batch.stand_ins(self._template)
        hidden = self.head.body(batch.x, cache, to_mlx(wanted.astype(np.int32)))
        return hidden, batch.layer_rows()

    def read(self, hidden: mx.array, wanted: Wanted) -> Reading:
        """Begin to read what is wanted of the logits of (n, D) hidden rows, n <= `chunk`."""
        return self._read(self.head.logits(hidden), wanted)
