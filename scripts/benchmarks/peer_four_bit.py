"""mlxscore with 4-bit weights in a process of its own, loaded from a folder as the server does."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peer import Peer, serve
from rows_file import Pair, Scores

from benchmarks import machine

machine.load_blas(machine.cache_dir())

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

from benchmarks import models  # noqa: E402
from benchmarks.byte_tokenizer import byte_tokenizer  # noqa: E402
from mlxscore_server.model import load  # noqa: E402
from mlxscore_server.row import Row  # noqa: E402
from mlxscore_server.settings import Settings  # noqa: E402

_QUANTIZATION = {"group_size": 64, "bits": 4}


def make(options: dict[str, Any]) -> Peer:
    if "dequantize" not in Settings.model_fields:
        raise ValueError("this server has no --dequantize")
    folder = Path(tempfile.mkdtemp(prefix="mlxscore-bench-"))
    try:
        _write_quantised(folder, options)
        scorer: Any = load(Settings(model=str(folder), dequantize=options["dequantize"])).scorer
    finally:
        shutil.rmtree(folder)

    def score(rows: list[Pair]) -> Scores:
        scorer.kept.clear()
        answers = scorer.score_rows([Row(ids.astype(np.int32), start) for ids, start in rows])
        return [answer.logprobs for answer in answers]

    return Peer({"four-bit": score}, {})


def _write_quantised(folder: Path, options: dict[str, Any]) -> None:
    whole = models.load(options["shape"], options["on_gpu"], Path(options["cache_dir"]))
    nn.quantize(whole.model, **_QUANTIZATION)
    arrays = dict(tree_flatten(whole.model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    config = {"quantization": _QUANTIZATION} | whole.config
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    byte_tokenizer().save_pretrained(str(folder))


if __name__ == "__main__":
    serve(make)
