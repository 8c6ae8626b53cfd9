"""The real server process around a model that takes a known time and whose answers are known.

`python steady_server.py SECONDS_PER_TOKEN flags...`. A token's logprob follows from all that comes
before it (`steady_model`), so that an answer that belongs to another request shows. No text is
special, whatever its bytes, but one that holds RAISE: the model raises on it.
"""

import os
import sys
import time

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # as cli.py does

import numpy as np
from fake_server import serve_to_end
from fake_window import Batch
from fakes import ByteScorer, loaded
from steady_model import RAISE, logprobs

from mlxscore_server import cli
from mlxscore_server.engine import Engine
from mlxscore_server.errors import MlxscoreError
from mlxscore_server.row import Row, RowScore


class SteadyScorer(ByteScorer):
    def __init__(self, seconds_per_token: float) -> None:
        super().__init__()
        self._seconds_per_token = seconds_per_token

    def score(self, batch: Batch) -> list[RowScore | MlxscoreError]:
        # A device works by itself: whoever waits for it takes no processor time.
        time.sleep(batch.computed_tokens * self._seconds_per_token)
        if any(RAISE in bytes(i for i in row.ids.tolist() if i < 256) for row in batch.rows):
            raise RuntimeError("a row that makes the model raise")
        return [self._row(row) for row in batch.rows]

    def _row(self, row: Row) -> RowScore:
        known = np.array(
            logprobs(row.ids.tolist(), row.start, next_token=row.next_token), np.float32
        )
        best = np.tile(np.arange(row.top_logprobs, dtype=np.int32), (len(known), 1))
        return RowScore(
            known,
            np.zeros(len(known), np.bool_),
            ranks=np.full(len(known), 2, np.int32) if row.ranks else None,
            top_ids=best if row.top_logprobs else None,
            top_logprobs=(-best / 256).astype(np.float32) if row.top_logprobs else None,
            next_id=0 if row.next_token else None,
        )


def main() -> None:
    seconds_per_token, *flags = sys.argv[1:]
    settings = cli._settings(flags)
    cli._set_up_logging(settings.log_level, settings.log_format)
    scorer = SteadyScorer(float(seconds_per_token))
    serve_to_end(Engine(settings, lambda: loaded(scorer)), settings)


if __name__ == "__main__":
    main()
