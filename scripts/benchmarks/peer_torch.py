"""transformers + torch as a contestant, as lm-evaluation-harness uses it, and a little better.

Padded batches of rows sorted by length, at most `batch_tokens` tokens each. Padding is on the right
and no mask is given, as the harness does it: what is padded comes after all that is read, and torch's
fused causal attention (sdpa) runs. Logits only of the columns that some row of the batch wants
(`logits_to_keep`), log-softmax in float32.
"""

from typing import Any

import numpy as np
import torch
import transformers
from peer import Memory, Peer, serve
from rows_file import Pair, Scores


def make(options: dict[str, Any]) -> Peer:
    device = "cuda" if options["on_gpu"] else "cpu"
    usual = "bfloat16" if options["on_gpu"] else "float32"
    dtype = getattr(torch, options.get("dtype", usual))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        options["folder"], dtype=dtype, attn_implementation="sdpa"
    )
    model = model.to(device).eval()
    budget = int(options["batch_tokens"])

    def score(rows: list[Pair]) -> Scores:
        scores: list[Any] = [None] * len(rows)
        with torch.inference_mode():
            for batch in _batches(rows, budget):
                for i, logprobs in zip(batch, _score(model, [rows[i] for i in batch]), strict=True):
                    scores[i] = logprobs
        return scores

    score([(np.arange(65, dtype=np.int32), 33)])
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    note = f"{versions}, {dtype}, sdpa, batches of <= {budget:,} tokens, logits_to_keep"
    return Peer({"transformers": score}, {"transformers": note}, _memory(device))


def _batches(rows: list[Pair], budget: int) -> list[list[int]]:
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    batches: list[list[int]] = [[]]
    for i in order:
        if batches[-1] and (len(batches[-1]) + 1) * (len(rows[i][0]) - 1) > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def _score(model: Any, rows: list[Pair]) -> Scores:
    length = max(len(ids) for ids, _ in rows)
    padded = np.zeros((len(rows), length), np.int64)
    for line, (ids, _) in zip(padded, rows, strict=True):
        line[: len(ids)] = ids
    # Column c of the inputs predicts token c + 1.
    wanted = [np.arange(start - 1, len(ids) - 1) for ids, start in rows]
    columns = np.unique(np.concatenate(wanted))
    line_of = np.repeat(np.arange(len(rows)), [len(w) for w in wanted])
    all_wanted = np.concatenate(wanted)
    tokens = torch.from_numpy(padded).to(model.device)
    keep = torch.from_numpy(columns).to(model.device)
    logits = model(input_ids=tokens[:, :-1], logits_to_keep=keep, use_cache=False).logits
    picked = torch.from_numpy(np.searchsorted(columns, all_wanted)).to(model.device)
    lines = torch.from_numpy(line_of).to(model.device)
    targets = tokens[lines, torch.from_numpy(all_wanted + 1).to(model.device)]
    logprobs = torch.log_softmax(logits[lines, picked].float(), dim=-1)
    found = logprobs.gather(1, targets[:, None])[:, 0].cpu().numpy()
    return np.split(found, np.cumsum([len(w) for w in wanted])[:-1])


def _memory(device: str) -> Memory:
    if device == "cpu":
        return Memory()
    weights = torch.cuda.memory_allocated()
    return Memory(
        torch.cuda.reset_peak_memory_stats,
        lambda: torch.cuda.max_memory_allocated() - weights,
        torch.cuda.empty_cache,
    )


if __name__ == "__main__":
    serve(make)
