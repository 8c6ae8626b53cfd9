"""Finished lines of results as one Parquet file. pyarrow is imported when one is asked for."""

import importlib
import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

from mlxscore_cli.stop import Stop

SUFFIX = ".parquet"

_ROWS = 1024  # at once; with all their tokens they are some megabytes


def check() -> None:
    """Raise Stop where pyarrow is not installed: before anything is scored."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise Stop(
            f"--out: {SUFFIX} needs pyarrow: pip install pyarrow, or write .jsonl"
        ) from error


def convert(lines: Path, out: Path) -> None:
    """`lines` is JSONL of results; OUT is there whole, or not at all, and `lines` then is gone."""
    pa: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    schema = _schema(pa)
    part = Path(f"{out}.part")
    with lines.open("rb") as source, parquet.ParquetWriter(part, schema) as writer:
        while rows := [json.loads(line) for line in islice(source, _ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    os.replace(part, out)
    lines.unlink()


def _schema(pa: Any) -> Any:
    """Of a result of `POST /score`: the same for each run, whatever it asked for."""
    # Not inferred: where a field is null in the first rows, nobody could know its type.
    data = pa.list_(pa.uint8())
    token = [("id", pa.int64()), ("text", pa.string()), ("bytes", data), ("logprob", pa.float64())]
    tokens = [
        *token,
        ("rank", pa.int64()),
        ("top", pa.list_(pa.struct(token))),
    ]
    counts = ("num_tokens", "num_bytes", "num_chars", "num_words", "num_windows")
    measures = ("bits_per_byte", "token_perplexity", "word_perplexity", "byte_perplexity")
    score = [
        ("index", pa.int64()),
        ("loglikelihood", pa.float64()),
        ("is_greedy", pa.bool_()),
        ("merged_boundary", pa.bool_()),
        *((name, pa.int64()) for name in counts),
        *((name, pa.float64()) for name in measures),
        ("tokens", pa.list_(pa.struct(tokens))),
    ]
    return pa.schema(
        [
            ("index", pa.int64()),
            ("id", pa.string()),
            ("context_tokens", pa.int64()),
            ("truncated_tokens", pa.int64()),
            ("scores", pa.list_(pa.struct(score))),
        ]
    )
