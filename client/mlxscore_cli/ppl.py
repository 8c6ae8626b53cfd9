"""`mlxscore ppl`."""

from typing import Annotated, Any

import typer

from mlxscore_cli.options import ApiKey, AsJson, Model, Url
from mlxscore_cli.service import connected
from mlxscore_cli.terminal import number, print_error, print_json, printable, stdout, table
from mlxscore_cli.texts import BadText, read
from mlxscore_client import MlxscoreError
from mlxscore_client.wire import PrefixIn

EXAMPLES = r"""
mlxscore ppl chapter-1.txt chapter-2.txt
mlxscore ppl --window 512 --stride 256 book.txt
fortune | mlxscore ppl -
"""

_FIELDS = (
    "loglikelihood",
    "num_tokens",
    "num_words",
    "num_bytes",
    "token_perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
)
_COLUMNS = ("tokens", "words", "bytes", "token ppl", "word ppl", "byte ppl", "bits/byte")


def ppl(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="A text each; '-' is standard input.")
    ],
    window: Annotated[
        int | None, typer.Option(min=2, help="Tokens that the model reads at once.")
    ] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="New tokens of each window.")] = None,
    prefix_in: Annotated[
        PrefixIn, typer.Option(help="Which windows begin with the prefix token (BOS, else EOS).")
    ] = "first",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """Token, word and byte perplexity and bits per byte of texts of any length.

    Of each file, and of all together as lm-evaluation-harness weights them. A file is taken as it is, with
    the line break at its end.
    """
    texts: dict[str, str] = {}
    failed = 0
    for name in dict.fromkeys(files):
        try:
            texts[name] = read(name)
        except BadText as error:
            print_error(str(error))
            failed = 1
    if not texts:
        raise typer.Exit(failed)
    with connected(url, api_key, model) as client:
        try:
            found = client.perplexity(
                texts.values(), window=window, stride=stride, prefix_in=prefix_in
            )
        except MlxscoreError as error:
            # Its place among the texts says nothing to who gave names of files.
            for place, name in enumerate(texts):
                error.message = error.message.replace(f"texts[{place}]", name)
                if error.param == f"texts[{place}]":
                    error.param = name
            raise
    rows = dict(zip(texts, found.texts, strict=True))
    if as_json:
        of_files = [{"file": name, **_fields(one)} for name, one in rows.items()]
        print_json({**_fields(found), "files": of_files})
    else:
        shown = [_row(printable(name), one) for name, one in rows.items()]
        if len(rows) > 1:
            shown.append(_row("all", found))
        stdout().print(table(["file", *_COLUMNS], shown))
    raise typer.Exit(failed)


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _FIELDS}


def _row(name: str, one: Any) -> list[str]:
    counts = [f"{getattr(one, field):,}" for field in _FIELDS[1:4]]
    perplexities = [number(getattr(one, field), 2) for field in _FIELDS[4:7]]
    return [name, *counts, *perplexities, number(one.bits_per_byte)]
