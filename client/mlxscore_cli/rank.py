"""`mlxscore rank`."""

from typing import Annotated

import typer

from mlxscore_cli.options import ApiKey, AsJson, Model, Url
from mlxscore_cli.service import connected
from mlxscore_cli.terminal import number, print_json, printable, stdout, table
from mlxscore_cli.texts import argument
from mlxscore_client.helpers import Normalize

EXAMPLES = r"""
mlxscore rank "The capital of France is" " Paris" " London" " a city"
mlxscore rank --normalize byte "She felt" " happy" " very happy indeed"
"""


def rank(
    context: Annotated[
        str, typer.Argument(metavar="CONTEXT", help="What comes before; '-' reads it from stdin.")
    ],
    continuations: Annotated[
        list[str],
        typer.Argument(metavar="CONTINUATION...", help="Mostly begin with a space: ' Paris'."),
    ],
    normalize: Annotated[
        Normalize,
        typer.Option(help="What a loglikelihood is divided by before they are compared."),
    ] = "none",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """Continuations of one context, the likeliest first.

    Probabilities are those among the given continuations. Loglikelihoods are in nats.
    """
    given = argument(context)
    with connected(url, api_key, model) as client:
        ranked = client.rank(given, continuations, normalize=normalize)
    if as_json:
        print_json([one.model_dump(mode="json") for one in ranked])
        return
    columns = ["continuation", "probability", "loglikelihood", "tokens", "greedy"]
    if normalize != "none":
        columns.append(f"per {normalize}")
    rows = [
        [
            printable(str(one.continuation)),
            number(one.probability),
            number(one.loglikelihood),
            str(one.num_tokens),
            "yes" if one.is_greedy else "no",
            number(one.score),
        ][: len(columns)]
        for one in ranked
    ]
    stdout().print(table(columns, rows))
