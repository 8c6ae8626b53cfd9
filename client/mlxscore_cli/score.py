"""`mlxscore score`."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import typer

from mlxscore_cli import bulk, parquet
from mlxscore_cli.batches import Outcome
from mlxscore_cli.bulk import Input
from mlxscore_cli.columns import Columns, read_table
from mlxscore_cli.options import ApiKey, AsJson, Model, Out, Overwrite, Resume, Url
from mlxscore_cli.records import Record, read_jsonl
from mlxscore_cli.service import connected
from mlxscore_client import Client, StreamResult
from mlxscore_client.wire import Boundary, PrefixIn, Truncation

EXAMPLES = r"""
mlxscore score items.jsonl --out scores.jsonl
mlxscore score items.jsonl --out scores.jsonl --resume
mlxscore score pairs.csv --context-column question --continuation-column answer --out scores.jsonl
mlxscore score texts.tsv --text-column sentence --out scores.parquet
zcat items.jsonl.gz | mlxscore score - --out scores.jsonl
"""

Format = Literal["jsonl", "csv", "tsv"]

_MAX_WAITING = 8192
"""Lines that are held until those before them are answered: more than a stream asks for ahead."""

_COLUMNS = "CSV and TSV"


def score(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSONL, .csv or .tsv; '-': standard input.")
    ],
    out: Out,
    resume: Resume = False,
    overwrite: Overwrite = False,
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: by FILE's name, else jsonl.")
    ] = None,
    context_column: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_COLUMNS)
    ] = "context",
    continuation_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_COLUMNS,
            help="May be given several times: several continuations of the context. "
            "\\[default: continuation]",
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=_COLUMNS, help="Of whole texts; in place of the two."
        ),
    ] = None,
    id_column: Annotated[str, typer.Option(metavar="NAME", rich_help_panel=_COLUMNS)] = "id",
    return_tokens: Annotated[
        bool, typer.Option("--return-tokens", help="Each token's logprob and rank.")
    ] = False,
    top_logprobs: Annotated[
        int, typer.Option(min=0, help="For each token, the likeliest tokens.")
    ] = 0,
    boundary: Annotated[
        Boundary, typer.Option(help="Whether context and continuation are encoded together.")
    ] = "joint",
    truncation: Annotated[
        Truncation, typer.Option(help="Of a context that is too long: an error, or cut.")
    ] = "error",
    window: Annotated[int | None, typer.Option(min=2, help="Of whole texts, tokens.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Of whole texts, tokens.")] = None,
    prefix_in: Annotated[
        PrefixIn, typer.Option(help="Of whole texts: windows with the prefix token.")
    ] = "first",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """Score a file of any length, a result a line, in the order of the input.

    A line of FILE is an item of POST /score; a line of OUT is its result, with its index among the items, its
    id and its scores. What fails goes to OUT.errors.jsonl with its line number, and the run goes on.
    Interrupted, also by kill -9, it goes on with --resume; OUT is then the same as of one run.
    """
    to_parquet = out.suffix == parquet.SUFFIX
    if to_parquet:
        parquet.check()
    options: dict[str, Any] = {
        "return_tokens": return_tokens,
        "top_logprobs": top_logprobs,
        "boundary": boundary,
        "truncation": truncation,
        "window": window,
        "stride": stride,
        "prefix_in": prefix_in,
    }
    columns = Columns(
        context_column, continuation_column or ["continuation"], text_column, id_column
    )
    with Input.open(file) as source, connected(url, api_key, model) as client:
        read, of_input = _reader(form or _form(file), columns, source.shown)
        code = bulk.run(
            source,
            read,
            partial(_scored, client, options),
            client,
            options | of_input,
            out=out,
            finish=parquet.convert if to_parquet else None,
            resume=resume,
            overwrite=overwrite,
            as_json=as_json,
        )
    raise typer.Exit(code)


def _form(name: str) -> Format:
    suffix = Path(name).suffix.lower()
    return "csv" if suffix == ".csv" else "tsv" if suffix in (".tsv", ".tab") else "jsonl"


def _reader(
    form: Format, columns: Columns, shown: str
) -> tuple[Callable[[BinaryIO], Iterator[Record]], dict[str, Any]]:
    """What reads the input, and what its results depend on beside the input itself."""
    if form == "jsonl":
        return read_jsonl, {"format": form}
    delimiter = "," if form == "csv" else "\t"
    read = partial(read_table, columns=columns, delimiter=delimiter, shown=shown)
    return read, {"format": form, "columns": vars(columns)}


def _scored(
    client: Client, options: dict[str, Any], records: Iterator[Record]
) -> Iterator[Outcome]:
    """Through one stream; another is begun only after very many lines that cannot be sent."""
    waiting = deque[Record]()
    all_read = False

    def items() -> Iterator[dict[str, Any]]:
        nonlocal all_read
        for record in records:
            waiting.append(record)
            if record.error is None:
                yield record.fields
            if len(waiting) >= _MAX_WAITING:
                return
        all_read = True

    def unsent() -> Iterator[Outcome]:
        while waiting and (error := waiting[0].error) is not None:
            yield waiting.popleft(), error

    while not all_read:
        for result in client.score_stream(items(), ordered=True, **options):
            yield from unsent()
            yield _outcome(waiting.popleft(), result)
        yield from unsent()


def _outcome(record: Record, result: StreamResult) -> Outcome:
    if result.error is not None:
        message, param = result.error.message, result.error.param
        return record, message if param is None or param in message else f"{message} ({param})"
    head = {"index": record.index, "id": result.id}
    rest = result.model_dump(mode="json", exclude_unset=True, exclude={"index", "id", "error"})
    return record, head | rest
