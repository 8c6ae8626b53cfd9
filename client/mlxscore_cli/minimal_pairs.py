"""`mlxscore minimal-pairs`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxscore_cli.batches import in_batches
from mlxscore_cli.bulk import Input
from mlxscore_cli.options import ApiKey, AsJson, Model, Url
from mlxscore_cli.progress import progress
from mlxscore_cli.records import Record, read_jsonl
from mlxscore_cli.service import connected
from mlxscore_cli.terminal import number, print_error, print_json, printable, stdout, table
from mlxscore_client import Client

EXAMPLES = r"""
mlxscore minimal-pairs blimp/*.jsonl
mlxscore minimal-pairs --by linguistics_term blimp/*.jsonl
"""

_BATCH = 128
_SENTENCES = ("sentence_good", "sentence_bad")


def minimal_pairs(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="JSONL as BLiMP's; '-': standard input.")
    ],
    by: Annotated[
        str, typer.Option(metavar="FIELD", help="Field that names a pair's paradigm.")
    ] = "UID",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """How often the model prefers the acceptable sentence of a pair, by paradigm and overall.

    Each line has sentence_good and sentence_bad, and mostly UID; where it has none, its file's name is the
    paradigm. A pair is right where the good sentence's loglikelihood is strictly the greater.
    """
    right: dict[str, int] = defaultdict(int)
    pairs: dict[str, int] = defaultdict(int)
    failed = 0
    with ExitStack() as stack:
        sources = [stack.enter_context(Input.open(name)) for name in files]
        client = stack.enter_context(connected(url, api_key, model))
        for source in sources:
            with progress(source.size) as tell:
                for record, outcome in _judged(client, read_jsonl(source.file)):
                    if isinstance(outcome, str):
                        failed += 1
                        print_error(f"{source.shown}, line {record.line}: {outcome}")
                    else:
                        name = str(record.fields.get(by, Path(source.shown).stem))
                        pairs[name] += 1
                        right[name] += outcome["right"]
                    tell(record)
    rows = [(name, pairs[name], right[name]) for name in sorted(pairs)]
    total, of_total = sum(pairs.values()), sum(right.values())
    if as_json:
        paradigms = {name: {"pairs": n, "right": k, "accuracy": _part(k, n)} for name, n, k in rows}
        whole = {"pairs": total, "right": of_total, "accuracy": _part(of_total, total)}
        print_json({**whole, "failed": failed, "paradigms": paradigms})
    else:
        shown = [*rows, ("all", total, of_total)] if len(rows) != 1 else rows
        cells = [(printable(n), f"{m:,}", number(_part(k, m), 4)) for n, m, k in shown]
        stdout().print(table(["paradigm", "pairs", "accuracy"], cells))
    raise typer.Exit(1 if failed else 0)


def _part(right: int, pairs: int) -> float | None:
    return right / pairs if pairs else None


def _judged(client: Client, records: Iterator[Record]) -> Iterator[tuple[Record, Any]]:
    def call(batch: Sequence[Record]) -> list[dict[str, Any]]:
        items = [{"text": record.fields[name]} for record in batch for name in _SENTENCES]
        found = [one.scores[0].loglikelihood for one in client.score_items(items).results]
        return [{"right": good > bad} for good, bad in zip(found[::2], found[1::2], strict=True)]

    return in_batches(map(_checked, records), call, _BATCH)


def _checked(record: Record) -> Record:
    if record.error is not None:
        return record
    for name in _SENTENCES:
        value = record.fields.get(name)
        if not isinstance(value, str) or not value:
            what = "is missing" if value is None else "must be a text that is not empty"
            error = f"{name}: {what}"
            return replace(record, error=error)
    return record
