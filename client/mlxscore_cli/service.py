"""The server that a command asks: one that runs, or one of its own for as long as the command takes."""

from collections.abc import Generator
from contextlib import contextmanager

from mlxscore_cli.own_server import own_server
from mlxscore_cli.stop import Stop
from mlxscore_client import Client


@contextmanager
def connected(url: str | None, api_key: str | None, model: str | None) -> Generator[Client]:
    """A client of the server that the three flags name."""
    if model is None:
        with Client(url, api_key=api_key) as client:
            # Where nobody answers, this says so at once; all else is tried several times.
            client.health()
            yield client
        return
    if url is not None:
        raise Stop("--url and --model: give one of them; --model starts a server of its own")
    with own_server(model) as (address, key), Client(address, api_key=key) as client:
        yield client
