"""Echo of all positions: what the most likely tokens cost beside the model, and what HTTP adds."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.contest import Field
from benchmarks.loads import LONG
from benchmarks.machine import timed
from mlxscore_server.row import Row

TOPS = (0, 1, 5)
PROMPT = 256
POLLS = 300


@dataclass
class Echo:
    """Seconds for the same prompts, the best of several turns."""

    what: str
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    served: str = ""
    """What the prompts of "core" and "served" were."""
    tokenize_ms: dict[str, float] = field(default_factory=dict[str, float])
    """p50 and p99 of /tokenize while the model is busy."""

    def share(self, top: int) -> float:
        """What the `top` most likely of each position cost, in forward passes of the model."""
        return (self.seconds[f"top {top}"] - self.seconds["top 0"]) / self.seconds["own"]


def measure(contestants: Field, url: str | None, scale: float, repeats: int) -> Echo:
    rng = np.random.default_rng(2)
    vocab = contestants.vocab_size

    def rows(count: int, length: int, top: int, *, next_token: bool) -> list[Row]:
        return [
            Row(ids, 1, top_logprobs=top, next_token=next_token)
            for ids in rng.integers(0, vocab, (count, length), dtype=np.int32)
        ]

    num_rows = max(2, round(64 * scale))
    found = Echo(f"{num_rows} x {LONG}, all positions")
    whole = rows(num_rows, LONG + 1, 0, next_token=False)
    turns: dict[str, Callable[[], object]] = {"own": lambda: contestants.own(_fresh(whole))}
    for top in TOPS:
        turns[f"top {top}"] = lambda top=top: contestants.core(_fresh(whole, top))
    prompts = rows(num_rows, PROMPT, 1, next_token=True)
    if url is not None:
        from benchmarks.served import complete

        found.served = f"{num_rows} prompts x {PROMPT} ids, echo, max_tokens 1, logprobs 1"
        turns["core"] = lambda: contestants.core(_fresh(prompts))
        turns["served"] = lambda: complete(url, prompts)
    for turn in turns.values():  # once for what is compiled or read at the first time
        turn()
    for _ in range(repeats):
        for name, turn in turns.items():
            seconds = timed(turn)
            found.seconds[name] = min(seconds, found.seconds.get(name, seconds))
    if url is not None:
        found.tokenize_ms = _tokenize_under_load(url, prompts)
    return found


def _fresh(rows: list[Row], top: int | None = None) -> list[Row]:
    """Rows remember their keys: each turn makes them anew."""
    return [replace(r, top_logprobs=r.top_logprobs if top is None else top) for r in rows]


def _tokenize_under_load(url: str, prompts: list[Row]) -> dict[str, float]:
    """Milliseconds of a short text's /tokenize while two requests for scores never stop."""
    from benchmarks.served import complete, tokenize

    ended = threading.Event()

    def keep_busy() -> None:
        while not ended.is_set():
            complete(url, prompts[:2])

    busy = [threading.Thread(target=keep_busy) for _ in range(2)]
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
    return {"p50": float(np.percentile(times, 50)), "p99": float(np.percentile(times, 99))}
