"""`mlxscore ping`."""

import time

import typer

from mlxscore_cli.options import ApiKey, AsJson, Model, Url
from mlxscore_cli.service import connected
from mlxscore_cli.terminal import print_json, stdout

EXAMPLES = r"""
mlxscore ping
mlxscore ping --url http://my-mac.local:8000 && mlxscore score items.jsonl --out scores.jsonl
"""


def ping(
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """Whether a server answers and can score: exit code 0, else 1, or 2 where nobody answers."""
    with connected(url, api_key, model) as client:
        started = time.perf_counter()
        status = client.health().status
        milliseconds = (time.perf_counter() - started) * 1000
        address = client.base_url
    if as_json:
        print_json({"url": address, "status": status, "milliseconds": round(milliseconds, 3)})
    else:
        stdout().print(f"{address}: {status} ({milliseconds:.1f} ms)", markup=False)
    raise typer.Exit(0 if status == "ok" else 1)
