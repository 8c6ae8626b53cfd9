"""llama.cpp through llama-cpp-python as a contestant: the default model's own GGUF, one row at a time.

Rows run in sorted order; tokens that a row has in common with the one before are not computed again.
"""

import importlib.metadata
import os
from typing import Any

import numpy as np
from llama_cpp import Llama
from peer import Peer, serve
from rows_file import Pair, Scores


def make(options: dict[str, Any]) -> Peer:
    llama = Llama(
        options["folder"],
        n_ctx=2 * 2048,
        n_batch=2048,
        n_threads=os.cpu_count(),
        n_threads_batch=os.cpu_count(),
        logits_all=True,
        verbose=False,
    )

    def score(rows: list[Pair]) -> Scores:
        scores: list[Any] = [None] * len(rows)
        before = np.zeros(0, np.int32)
        llama.reset()
        for i in sorted(range(len(rows)), key=lambda i: rows[i][0].tolist()):
            ids, start = rows[i]
            inputs = ids[:-1]
            shortest = min(len(before), len(inputs))
            unlike = np.flatnonzero(before[:shortest] != inputs[:shortest])
            llama.n_tokens = int(unlike[0]) if len(unlike) else shortest
            if llama.n_tokens < len(inputs):
                llama.eval(inputs[llama.n_tokens :].tolist())
            logits = llama.scores[start - 1 : len(inputs)].astype(np.float64)
            highest = logits.max(axis=1, keepdims=True)
            sums = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
            picked = logits[np.arange(len(logits)), ids[start:]]
            scores[i] = (picked - sums).astype(np.float32)
            before = inputs
        return scores

    version = importlib.metadata.version("llama-cpp-python")
    return Peer({"llama.cpp": score}, {"llama.cpp": f"llama-cpp-python {version}, quantised GGUF"})


if __name__ == "__main__":
    serve(make)
