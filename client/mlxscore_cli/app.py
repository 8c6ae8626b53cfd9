"""The commands, and what their errors are told as."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import typer

from mlxscore_cli import dpo, minimal_pairs, model, ping, ppl, rank, score, show
from mlxscore_cli.stop import Stop
from mlxscore_cli.terminal import print_error
from mlxscore_cli.texts import BadText
from mlxscore_client import (
    APIConnectionError,
    InvalidRequestError,
    InvalidResponseError,
    MlxscoreError,
    __version__,
)

_COMMANDS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("rank", rank.rank, rank.EXAMPLES),
    ("ppl", ppl.ppl, ppl.EXAMPLES),
    ("show", show.show, show.EXAMPLES),
    ("score", score.score, score.EXAMPLES),
    ("dpo", dpo.dpo, dpo.EXAMPLES),
    ("minimal-pairs", minimal_pairs.minimal_pairs, minimal_pairs.EXAMPLES),
    ("ping", ping.ping, ping.EXAMPLES),
    ("model", model.model, model.EXAMPLES),
)

_app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help(function: Callable[..., Any]) -> str:
    """A docstring whose lines are as long as the terminal lets them be."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


for _name, _function, _examples in _COMMANDS:
    _app.command(_name, help=_help(_function), epilog=f"[bold]Examples[/bold]\n{_examples}")(
        _function
    )


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mlxscore {__version__}")
        raise typer.Exit


@_app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """How likely does a language model find this text?

    Asks an mlxscore server: the one at --url or MLXSCORE_BASE_URL, or one of its own (--model).
    Exit codes: 0 fine; 1 a line failed, or the server said no; 2 wrong usage, or no server.
    """


def run(name: str, argv: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        _app(args=list(argv), prog_name=name)
    except Stop as stop:
        print_error(str(stop))
        return stop.code
    except BadText as error:
        print_error(str(error))
        return 1
    except MlxscoreError as error:
        # The client's arguments are flags here.
        message = str(error).replace("base_url", "--url").replace("api_key", "--api-key")
        print_error(message)
        asked_wrongly = APIConnectionError | InvalidRequestError | InvalidResponseError
        return 2 if isinstance(error, asked_wrongly) else 1
    return 0
