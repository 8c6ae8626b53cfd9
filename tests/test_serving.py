"""Sixty-four callers at once against the real server process: each gets what it would get alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

from server_process import ServerProcess

from mlxscore_client import Client

CALLERS = 64
WORDS = ["river", "stone", "paper", "cloud", "bread", "glass", "night", "sugar"]


def test_each_caller_gets_what_it_would_get_alone(server: ServerProcess) -> None:
    """Different lengths, contexts and continuations, in the same micro-batches."""
    requests = [
        (
            " ".join(f"The {WORDS[(i + j) % 8]} {i} lay" for j in range(1 + i % 5)),
            [f" on the {WORDS[i % 8]}", f" {i}", " and"][: 1 + i % 3],
        )
        for i in range(CALLERS)
    ]
    start = threading.Barrier(CALLERS)

    def ask(request: tuple[str, list[str]]) -> list[float]:
        with Client(server.url) as client:
            start.wait()
            return [score.loglikelihood for score in client.score(*request)]

    with ThreadPoolExecutor(CALLERS) as pool:
        together = list(pool.map(ask, requests))
    with Client(server.url) as client:
        for found, request in zip(together, requests, strict=True):
            alone = [score.loglikelihood for score in client.score(*request)]
            assert len(found) == len(alone)
            assert all(abs(a - b) <= 1e-4 for a, b in zip(found, alone, strict=True))
