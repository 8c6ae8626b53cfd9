"""The entry point. Imports nothing of the extra early, so that it can be missed politely."""

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

_NAME = "mlxscore"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process. 0: fine; 1: a line failed, or the server said no; 2: wrong usage,
    or no server; 130: interrupted."""
    try:
        from mlxscore_cli.app import run
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("mlxscore"):
            raise  # a bug of ours
        print(
            f"{_NAME}: error: {package or 'a package'} is not installed; "
            "this command needs: pip install 'mlxscore[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    # So that what a command has started ends with it.
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(run(_NAME, sys.argv[1:] if argv is None else list(argv)))


def _terminated(sign: int, _: object) -> NoReturn:
    sys.exit(128 + sign)
