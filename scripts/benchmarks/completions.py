"""Echo of all positions: what the most likely tokens cost beside the model, and what HTTP adds."""

import threading
import time
from collections.abc import Callable

import numpy as np

from benchmarks.contest import Field
from benchmarks.loads import LONG
from benchmarks.machine import timed
from benchmarks.served import Server, complete, tokenize
from mlxscore_server.row import Row

TOPS = (0, 1, 5)
PROMPT = 256
POLLS = 200


class Echo:
    """Rows of new random ids at each turn, so that nothing of an earlier one is kept."""

    def __init__(self, contestants: Field, scale: float) -> None:
        self._field = contestants
        self._rng = np.random.default_rng(2)
        self.num_rows = max(2, round(64 * scale))

    def tops(self, repeats: int) -> dict[str, float]:
        """What the most likely tokens of all positions cost, in forward passes of the model."""
        turns: dict[str, Callable[[], float]] = {
            "own": lambda: self._field.own_seconds(self._rows(LONG + 1, 0))
        }
        for top in TOPS:
            turns[f"top {top}"] = lambda top=top: self._core(self._rows(LONG + 1, top))
        best = _best(turns, repeats)
        what = f"echo of {self.num_rows} x {LONG}"
        figures = {f"{what}, {name}, s": seconds for name, seconds in best.items()}
        figures["best token / own forward"] = (best["top 1"] - best["top 0"]) / best["own"]
        figures["5 best tokens / own forward"] = (best["top 5"] - best["top 0"]) / best["own"]
        return figures

    def served(self, server: Server, repeats: int) -> dict[str, float]:
        """Prompts with echo and one token more, as lm-evaluation-harness asks, against the core."""
        url = server.url

        def ask() -> float:
            rows = self._prompts()
            return timed(lambda: complete(url, rows))

        best = _best({"core": lambda: self._core(self._prompts()), "served": ask}, repeats)
        what = f"completions of {self.num_rows} x {PROMPT}"
        figures = {f"{what}, {name}, s": seconds for name, seconds in best.items()}
        figures["served completions / core"] = best["served"] / best["core"]
        return figures | self._tokenize_under_load(url)

    def _core(self, rows: list[Row]) -> float:
        return timed(lambda: self._field.ours.answers(rows))

    def _rows(self, length: int, top: int, *, next_token: bool = False) -> list[Row]:
        ids = self._rng.integers(
            0, self._field.ours.vocab_size, (self.num_rows, length), dtype=np.int32
        )
        return [Row(line, 1, top_logprobs=top, next_token=next_token) for line in ids]

    def _prompts(self) -> list[Row]:
        return self._rows(PROMPT, 1, next_token=True)

    def _tokenize_under_load(self, url: str) -> dict[str, float]:
        """A short text's /tokenize while two requests for scores never stop."""
        ended = threading.Event()
        lots = [[self._prompts()[:2] for _ in range(50)] for _ in range(2)]

        def keep_busy(lot: list[list[Row]]) -> None:
            while not ended.is_set():
                for rows in lot:
                    if ended.is_set():
                        break
                    complete(url, rows)

        busy = [threading.Thread(target=keep_busy, args=(lot,)) for lot in lots]
        for thread in busy:
            thread.start()
        try:
            ask = tokenize(url)
            times: list[float] = []
            for _ in range(POLLS):
                times.append(1e3 * timed(ask))
                time.sleep(0.02)
        finally:
            ended.set()
            for thread in busy:
                thread.join()
        return {
            f"/tokenize p{percent} under load, ms": float(np.percentile(times, percent))
            for percent in (50, 99)
        }


def _best(turns: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    for turn in turns.values():  # once for what is compiled or read at the first time
        turn()
    best: dict[str, float] = {}
    for _ in range(repeats):
        for name, turn in turns.items():
            seconds = turn()
            best[name] = min(seconds, best.get(name, seconds))
    return best
