"""`mlxscore-server` that ends when whoever started it closes its standard input, by dying too.

The only module here beside which MLX is imported.
"""

import os
import signal
import threading

from mlxscore_server.cli import main

_STDIN = 0


def _watch() -> None:
    # Not through sys.stdin, whose lock this thread would hold when the interpreter ends.
    while os.read(_STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    main()
