"""`mlxscore dpo`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast

import typer

from mlxscore_cli import bulk
from mlxscore_cli.batches import Outcome, in_batches
from mlxscore_cli.bulk import Input
from mlxscore_cli.options import ApiKey, AsJson, Model, Out, Overwrite, Resume, Url
from mlxscore_cli.records import Record, read_jsonl
from mlxscore_cli.service import connected
from mlxscore_cli.stop import Stop
from mlxscore_client import Client
from mlxscore_client.helpers import Prompt, TruncationMode

EXAMPLES = r"""
mlxscore dpo pairs.jsonl --out with-logps.jsonl --max-length 1024
mlxscore dpo pairs.jsonl --out with-logps.jsonl --resume --max-length 1024
"""

_BATCH = 64
_PARTS = ("prompt", "chosen", "rejected")


def dpo(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSONL; '-': standard input.")],
    out: Out,
    resume: Resume = False,
    overwrite: Overwrite = False,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and completion together.")
    ] = None,
    truncation_mode: Annotated[
        TruncationMode, typer.Option(help="Which end of what is longer is kept.")
    ] = "keep_start",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """Reference logprobs of preference pairs, as TRL's DPOTrainer takes them.

    Each line of FILE has prompt, chosen and rejected: texts, conversations or token ids. OUT has the same
    lines with ref_chosen_logps and ref_rejected_logps (nats), which DPOTrainer takes in place of a reference
    model. What fails goes to OUT.errors.jsonl with its line number, and the run goes on.
    """
    if out.suffix == ".parquet":
        raise Stop("--out: pairs are written as JSONL; name it .jsonl")
    options: dict[str, Any] = {"max_length": max_length, "truncation_mode": truncation_mode}
    with Input.open(file) as source, connected(url, api_key, model) as client:
        code = bulk.run(
            source,
            read_jsonl,
            partial(_with_logps, client, max_length, truncation_mode),
            client,
            options,
            out=out,
            resume=resume,
            overwrite=overwrite,
            as_json=as_json,
        )
    raise typer.Exit(code)


def _with_logps(
    client: Client,
    max_length: int | None,
    truncation_mode: TruncationMode,
    records: Iterator[Record],
) -> Iterator[Outcome]:
    def call(batch: Sequence[Record]) -> list[dict[str, Any]]:
        prompt, chosen, rejected = (
            [cast(Prompt, record.fields[part]) for record in batch] for part in _PARTS
        )
        found = client.dpo_logps(
            prompt,
            chosen,
            rejected,
            max_length=max_length,
            truncation_mode=truncation_mode,
        )
        return [
            record.fields
            | {
                "ref_chosen_logps": pair.ref_chosen_logps,
                "ref_rejected_logps": pair.ref_rejected_logps,
            }
            for record, pair in zip(batch, found, strict=True)
        ]

    for record, outcome in in_batches(map(_checked, records), call, _BATCH):
        # A column's place says nothing to who gave lines; each that is refused was asked for alone.
        yield record, outcome.replace("[0]", "", 1) if isinstance(outcome, str) else outcome


def _checked(record: Record) -> Record:
    if record.error is not None:
        return record
    missing = [part for part in _PARTS if record.fields.get(part) is None]
    if not missing:
        return record
    error = f"{missing[0]}: is missing"
    if missing == ["prompt"] and isinstance(record.fields["chosen"], list):
        error += " (where the completions repeat it, cut it off first: TRL's extract_prompt)"
    return replace(record, error=error)
