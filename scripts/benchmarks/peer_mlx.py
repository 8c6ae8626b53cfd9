"""MLX as it comes, in a process that holds nothing of this project but the BLAS.

own       the model's own body on the rows, unpadded, one length at a time, without head or scores
naive     rows in the order given, padded to the longest of each batch, boolean mask, logits of all
          positions, log-softmax of everything, gather
evaluate  mlx_lm.evaluate's own `loglikelihood` and `loglikelihood_rolling`
"""

import importlib.util
import os
import sys
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import machine

machine.load_blas(machine.cache_dir())
os.environ["TQDM_DISABLE"] = "1"

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from peer import Memory, Peer, serve  # noqa: E402
from rows_file import Pair, Scores  # noqa: E402

from benchmarks.models import load  # noqa: E402
from mlxscore_server.device import current  # noqa: E402

_FIRST_CHARACTER = 0x10000  # ids as characters: beyond the surrogates


def make(options: dict[str, Any]) -> Peer:
    mx.set_cache_limit(current().cache_bytes)
    model: Any = load(options["shape"], options["on_gpu"], Path(options["cache_dir"])).model
    budget = int(options["batch_tokens"])
    evaluate = _Evaluate(model)
    weights = mx.get_active_memory()
    memory = Memory(
        mx.reset_peak_memory, lambda: mx.get_peak_memory() - weights, lambda: mx.clear_cache()
    )
    ways = {
        "own": lambda rows: _own(model, rows, budget),
        "naive": lambda rows: _naive(model, rows, budget),
        "evaluate": evaluate.score,
    }
    notes = {
        "own": "the model's own body on the same rows, unpadded, no head, no scores",
        "naive": f"padded batches of <= {budget:,} tokens, boolean mask, logits of all positions",
        "evaluate": f"mlx_lm.evaluate's own code, mlx-lm {machine.version('mlx-lm')}",
    }
    return Peer(ways, notes, memory)


def _own(model: Any, rows: list[Pair], budget: int) -> None:
    inputs = sorted((ids[:-1] for ids, _ in rows), key=len)
    for length, group in groupby(inputs, key=len):
        alike = list(group)
        num_batches = -(-len(alike) * length // budget)
        for some in np.array_split(np.stack(alike), min(num_batches, len(alike))):
            mx.eval(model.model(mx.array(some)))


def _naive(model: Any, rows: list[Pair], budget: int) -> Scores:
    scores: Scores = []
    num_rows = max(1, budget // max(len(ids) - 1 for ids, _ in rows))
    for first in range(0, len(rows), num_rows):
        some = rows[first : first + num_rows]
        padded = np.zeros((len(some), max(len(ids) for ids, _ in some)), np.int32)
        for line, (ids, _) in zip(padded, some, strict=True):
            line[: len(ids)] = ids
        lengths = mx.array([len(ids) - 1 for ids, _ in some])
        cache = [_Masked(lengths, padded.shape[1] - 1)] * len(model.layers)
        logits = model(mx.array(padded[:, :-1]), cache=cache).astype(mx.float32)
        logprobs = nn.log_softmax(logits, axis=-1)
        picked = mx.take_along_axis(logprobs, mx.array(padded[:, 1:, None]), axis=-1)
        values = np.array(picked[:, :, 0])
        scores += [
            v[start - 1 : len(ids) - 1] for v, (ids, start) in zip(values, some, strict=True)
        ]
    return scores


class _Masked:
    """Where mlx-lm expects a cache: it keeps nothing and hides the padding by a boolean mask."""

    offset = 0

    def __init__(self, lengths: mx.array, width: int) -> None:
        columns = mx.arange(width)
        causal = columns[:, None] >= columns[None, :]
        self._mask = causal[None, None] & (columns < lengths[:, None])[:, None, None]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values

    def make_mask(self, *_: Any, **__: Any) -> mx.array:
        return self._mask


class _Evaluate:
    """mlx_lm.evaluate's model, around a loaded one and ids written as characters."""

    def __init__(self, model: Any) -> None:
        _without_harness()
        from mlx_lm.evaluate import MLXLM

        self._lm: Any = MLXLM.__new__(MLXLM)
        self._lm._model = model
        self._lm._max_tokens = None
        self._lm._batch_size = 8  # its default, without the tokenizer that __init__ would load
        self._lm.use_chat_template = True
        self._lm.tokenizer = SimpleNamespace(
            encode=lambda text, **_: [ord(c) - _FIRST_CHARACTER for c in text]
        )

    def score(self, rows: list[Pair]) -> Scores:
        def request(*parts: Any) -> SimpleNamespace:
            texts = ["".join(chr(i + _FIRST_CHARACTER) for i in part.tolist()) for part in parts]
            return SimpleNamespace(args=tuple(texts))

        if all(start == 1 for _, start in rows):
            sums = self._lm.loglikelihood_rolling([request(ids) for ids, _ in rows])
        else:
            asked = [request(ids[:start], ids[start:]) for ids, start in rows]
            sums = [total for total, _ in self._lm.loglikelihood(asked)]
        return [np.array([total], np.float32) for total in sums]


def _without_harness() -> None:
    """mlx_lm.evaluate imports lm_eval for a base class and a decorator only: empty ones will do."""
    if importlib.util.find_spec("lm_eval") is None:
        names = ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")
        modules: dict[str, Any] = {name: ModuleType(name) for name in names}
        modules["lm_eval.api.model"].LM = object
        modules["lm_eval.api.registry"].register_model = lambda _: lambda cls: cls
        sys.modules.update(modules)


if __name__ == "__main__":
    serve(make)
