"""`mlxscore show`."""

import math
from typing import Annotated

import typer
from rich.style import Style
from rich.text import Text

from mlxscore_cli.options import ApiKey, AsJson, Model, Url
from mlxscore_cli.service import connected
from mlxscore_cli.terminal import number, print_json, printable, stdout, table
from mlxscore_cli.texts import argument
from mlxscore_client import TokenScore
from mlxscore_client.wire.heat_map import MAX_BITS, colours

EXAMPLES = r"""
mlxscore show "The old dog buried its bone."
mlxscore show --context "2 + 2 =" " 4, of course"
mlxscore show --top 3 - < poem.txt
"""


def show(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="'-' reads it from standard input.")],
    context: Annotated[
        str | None, typer.Option(help="What comes before: TEXT is scored as what follows it.")
    ] = None,
    top: Annotated[
        int, typer.Option(min=0, help="How many of the tokens that the model preferred to list.")
    ] = 1,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """A text's tokens, coloured by how surprising each is.

    From dark blue (expected) to yellow (16 bits or more), which looks alike with and without colour vision
    deficiency. Then each token with its surprisal in bits, its rank, and what the model preferred.
    """
    given = argument(text)
    item = {"text": given} if context is None else {"context": context, "continuation": given}
    with connected(url, api_key, model) as client:
        (result,) = client.score_items([item], return_tokens=True, top_logprobs=top).results
    (score,) = result.scores
    if as_json:
        print_json(score.model_dump(mode="json", exclude_unset=True))
        return
    tokens = score.tokens or []
    out = stdout()
    out.print(_heat(tokens), soft_wrap=not out.is_terminal)
    if out.is_terminal and not out.no_color:
        out.print(_legend())
    out.print()
    columns = ["token", *(["preferred"] if top else []), "bits", "rank"]
    rows = [
        [
            _quoted(token.text),
            *([_preferred(token)] if top else []),
            number(_bits(token), 2),
            f"{token.rank:,}",
        ]
        for token in tokens
    ]
    out.print(table(columns, rows, left=len(columns) - 2))
    bits = -score.loglikelihood / math.log(2)
    out.print(
        f"\n{score.num_tokens:,} tokens, {number(bits, 2)} bits, "
        f"loglikelihood {number(score.loglikelihood)} nats"
    )


def _heat(tokens: list[TokenScore]) -> Text:
    made = Text()
    for token in tokens:
        # A line break is shown and made.
        pieces = token.text.split("\n")
        shown = "↵\n".join(printable(piece) for piece in pieces)
        made.append(shown, _style(_bits(token)))
    return made


def _legend() -> Text:
    made = Text("bits ")
    for bits in (0.0, MAX_BITS / 4, MAX_BITS / 2, 3 * MAX_BITS / 4, MAX_BITS):
        made.append(f" {bits:g}{'+' if bits == MAX_BITS else ''} ", _style(bits))
    return made


def _preferred(token: TokenScore) -> str:
    best = token.top or []
    return "  ".join(f"{_quoted(one.text)} {math.exp(one.logprob):.2f}" for one in best)


def _quoted(text: str) -> str:
    # Whether a space stands before it is to be seen.
    return f"'{printable(text)}'"


def _bits(token: TokenScore) -> float:
    return -token.logprob / math.log(2)


def _style(bits: float) -> Style:
    background, ink = colours(bits)
    return Style(color=ink, bgcolor=background)
