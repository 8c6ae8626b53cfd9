"""`mlxscore-server`: flags and environment to settings, then the server. Imports nothing heavy early."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from mlxscore_server.settings import Settings

_NAME = "mlxscore-server"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the server; ends the process. 0: stopped, 1: failed while running, 2: could not start."""
    try:
        settings = _parse(list(sys.argv[1:] if argv is None else argv))
    except ImportError as error:
        _missing(error)
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    # Other libraries' chatter (HTTP clients, model hubs) is for those who debug.
    if settings.log_level != "debug":
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("mlxscore").setLevel(settings.log_level.upper())
    from mlxscore_server.errors import StartupError

    try:
        leave(_run(settings))
    except StartupError as error:
        _fail(str(error), code=2)
    except ImportError as error:
        _missing(error)


def leave(code: int) -> NoReturn:
    """End the process now. Not by the interpreter's own exit: in a process where a thread ran a model,
    MLX's compiled functions abort that now and then, and the exit code would lie to supervisors."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(settings: "Settings") -> int:
    # The BLAS must be loaded before anything imports mlx.core.
    from mlxscore_server.blas import load_blas

    load_blas(settings.blas, settings.cache_dir)
    # Bars of downloads and of loading would break up the log.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from mlxscore_server.app import create_app
    from mlxscore_server.engine import Engine
    from mlxscore_server.model import load
    from mlxscore_server.server import serve

    engine = Engine(settings, lambda: load(settings))
    return serve(create_app(engine, settings), engine, settings)


def _parse(argv: list[str]) -> "Settings":
    if argv == ["--version"]:
        from mlxscore_server import __version__

        print(f"{_NAME} {__version__}")
        sys.exit(0)
    from pydantic import ValidationError
    from pydantic_settings import CliApp, CliSettingsSource, SettingsError

    from mlxscore_server.settings import Settings

    source = CliSettingsSource[object](Settings, cli_prog_name=_NAME)
    try:
        return CliApp.run(Settings, cli_args=argv, cli_settings_source=source)
    except ValidationError as error:
        for found in error.errors():
            name = "_".join(map(str, found["loc"]))
            flag, variable = f"--{name.replace('_', '-')}", f"MLXSCORE_{name.upper()}"
            _say(f"{flag} ({variable}): {found['msg']}, got {found['input']!r}")
        sys.exit(2)
    except SettingsError as error:
        _fail(str(error), code=2)


def _missing(error: ImportError) -> NoReturn:
    _fail(
        f"{error.name or error} is not installed: pip install 'mlxscore[server]' "
        "(or 'mlxscore[server-cuda]' for an NVIDIA GPU)",
        code=1,
    )


def _say(message: str) -> None:
    print(f"{_NAME}: error: {message}", file=sys.stderr)


def _fail(message: str, *, code: int) -> NoReturn:
    _say(message)
    leave(code)


if __name__ == "__main__":
    main()
