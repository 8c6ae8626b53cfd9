"""How far scores are from transformers' in float32, token by token, on the same weights.

Every position is scored of a long text, and of 64 rows: the reference texts of the tests (up to 2,000
tokens) and pieces of this project's documents. Each way of computing them is compared with
transformers in float32, one row at a time: mlxscore's in both layouts, cold and warm, alone and
together, and transformers' own in the type that the model is served in.

    scripts/numerics                                                  # the default model, float32
    PYTHONPATH=server:client python3 scripts/numerics.py --shape llama-1b         # a GPU, bfloat16

Random weights of a real shape are read by random ids.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import machine
from benchmarks.peer_python import python_with_peers
from benchmarks.peers import Process
from benchmarks.rows_file import Pair, Scores, write_rows
from benchmarks.shapes import SHAPES
from benchmarks.tables import aligned, piped

_ROOT = Path(__file__).parent.parent
_GOLDEN = _ROOT / "tests" / "golden" / "smollm2-135m.jsonl"
_ROWS = 64
_PIECE = 96
"""Tokens of a piece of the documents."""


def main() -> int:
    args = parse_args()
    cache = machine.cache_dir()
    machine.load_blas(cache)
    table = [["what", "of", "mean", "99 of 100", "largest"]]
    with ExitStack() as stack:
        for name, scores, reference in compared(args, cache, stack):
            parts = (f"{_ROWS} texts", slice(1, None)), (f"{args.long:,} tokens", slice(1))
            for of, part in parts:
                table.append([name, of, *figures(scores[part], reference[part])])
            print("...", *table[-2][:1], file=sys.stderr, flush=True)
    print(piped(table) if args.markdown else aligned(table))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=["default", *SHAPES], default="default")
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="one with torch, transformers")
    parser.add_argument("--long", type=int, default=2048, help="tokens of the long text")
    parser.add_argument("--markdown", action="store_true", help="as a table for the documents")
    return parser.parse_args()


def figures(scores: Scores, reference: Scores) -> list[str]:
    """|differences| of logprobs in nats: mean, 99th percentile, largest."""
    off = np.abs(np.concatenate(scores) - np.concatenate(reference))
    return [f"{value:.1e}" for value in (off.mean(), np.quantile(off, 0.99), off.max())]


def compared(
    args: argparse.Namespace, cache: Path, stack: ExitStack
) -> Iterator[tuple[str, Scores, Scores]]:
    """A way's name, its logprobs, and the reference's."""
    import mlx.core as mx
    from benchmarks import models

    from mlxscore_server.device import current

    device = current()
    on_gpu = device.name == "cuda"
    model = models.load(args.shape, on_gpu, cache)
    rows = default_rows(args.long, cache) if args.shape == "default" else random_rows(args.long)
    scratch = Path(tempfile.mkdtemp(prefix="mlxscore-numerics-"))
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    folder = model.folder
    if folder is None:
        folder = models.write_folder(model)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
    write_rows(scratch / "rows.npz", rows)
    served = "bfloat16" if on_gpu else "float32"

    def transformers(dtype: str, batch_tokens: int) -> Scores:
        options = {"folder": str(folder), "on_gpu": on_gpu, "dtype": dtype}
        python = python_with_peers(cache, args.peers)
        process = Process("peer_torch.py", python, options | {"batch_tokens": batch_tokens})
        try:
            scores = process.run("transformers", scratch / "rows.npz").scores
        finally:
            process.stop()
        assert scores is not None, "this is a bug: transformers gives logprobs"
        return scores

    reference = transformers("float32", 1)
    if not on_gpu:
        model.model.set_dtype(mx.float32)  # as the server does
    for name, scores in ours(model.model, device, rows):
        yield f"mlxscore {served}, {name}", scores, reference
    if on_gpu:
        yield f"transformers {served}, alone", transformers(served, 1), reference
    yield f"transformers {served}, in batches", transformers(served, 8192), reference


def ours(model: Any, device: Any, pairs: list[Pair]) -> Iterator[tuple[str, Scores]]:
    """This project's ways: name and logprobs."""
    from mlxscore_server.row import Row, RowScore
    from mlxscore_server.scoring import BatchScorer

    rows = [Row(ids, start) for ids, start in pairs]
    scorer = BatchScorer(model, device, kept_bytes=2**32)

    def score(*windows: list[Row]) -> Scores:
        answers = [answer for window in windows for answer in scorer.score_rows(window)]
        assert all(isinstance(answer, RowScore) for answer in answers), "a score is not finite"
        return [answer.logprobs for answer in answers if isinstance(answer, RowScore)]

    for layout in ("packed", "left-padded"):
        scorer.layout = layout
        scorer.kept.max_bytes = 0
        yield f"{layout}, alone", score(*([row] for row in rows))
        scorer.kept.max_bytes = 2**32
        yield f"{layout}, together", score(rows)
        if layout == "packed":
            # Half of each row was kept by an earlier request: its end goes on from there.
            scorer.kept.clear()
            score([Row(row.ids[: 1 + len(row.ids) // 2], 1) for row in rows if len(row.ids) > 2])
            yield "packed, from kept prefixes", score(rows)
            scorer.kept.clear()
            before, scorer.max_batch_tokens = scorer.max_batch_tokens, 64
            yield "packed, in chains of 64 tokens", score(rows)
            scorer.max_batch_tokens = before
    scorer.close()


def default_rows(long: int, cache: Path) -> list[Pair]:
    """The long text, then the rows."""
    from tokenizers import Tokenizer

    from mlxscore_server.default_model import ensure_default_model

    tokenizer = Tokenizer.from_file(str(ensure_default_model(cache) / "tokenizer.json"))
    names = ["README.md", *sorted(f"docs/{path.name}" for path in (_ROOT / "docs").glob("*.md"))]
    text = "\n".join((_ROOT / name).read_text(encoding="utf-8") for name in names)
    prose = np.array(tokenizer.encode(text).ids, np.int32)
    lines = [json.loads(line) for line in _GOLDEN.read_text(encoding="utf-8").splitlines()]
    # Those whose boundary is merged have no ids of their own.
    lines = [line for line in lines if "continuation_ids" in line]
    texts = [np.array(line["context_ids"] + line["continuation_ids"], np.int32) for line in lines]
    texts += [prose[long + i * _PIECE :][:_PIECE] for i in range(_ROWS - len(texts))]
    return [(ids, 1) for ids in [prose[:long], *texts]]


def random_rows(long: int) -> list[Pair]:
    """The long text, then rows of 16 to 1,024 tokens."""
    rng = np.random.default_rng(0)
    lengths = [long, *rng.integers(16, 1025, _ROWS).tolist()]
    return [(rng.integers(0, 100_000, n).astype(np.int32), 1) for n in lengths]


if __name__ == "__main__":
    sys.exit(main())
