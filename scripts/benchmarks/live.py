"""The engine under load: a pair behind a bulk run, and 64 clients with and without HTTP between."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loads import Maker
from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.row import Row
from mlxscore_server.server import Server, bind
from mlxscore_server.settings import Settings

CLIENTS = 64
_BULK_ROWS = 5000
_SAMPLES = 20
_SAMPLE_SECONDS = 20.0
_HOST = "127.0.0.1"
_CLIENTS_SCRIPT = Path(__file__).with_name("clients.py")

Request = list[Row]
"""One context, several continuations."""


async def pair_behind_bulk(
    engine: Engine, maker: Maker, micro_batch: float | None
) -> dict[str, float]:
    """How long a single pair takes, alone and while a bulk run of 5,000 rows is in the queue.

    `micro_batch`: what a full one takes, seconds, where that is known.
    """
    figures: dict[str, float] = {}

    async def ask() -> float:
        started = time.perf_counter()
        await engine.score([maker.row(64, 8)])
        return time.perf_counter() - started

    def note(what: str, times: Sequence[float]) -> None:
        for percent in (50, 95):
            figures[f"{what}, p{percent}, ms"] = 1e3 * float(np.percentile(times, percent))

    await ask()
    note("pair alone", [await ask() for _ in range(_SAMPLES)])
    rows = [maker.row(n, 8) for n in maker.between(100, 300, _BULK_ROWS)]
    bulk = asyncio.create_task(engine.score(rows))
    try:
        await asyncio.sleep(0.1)  # until it runs
        started, times = time.perf_counter(), list[float]()
        while len(times) < _SAMPLES and time.perf_counter() - started < _SAMPLE_SECONDS:
            times.append(await ask())
            if bulk.done():
                break
    finally:
        bulk.cancel()
        await asyncio.gather(bulk, return_exceptions=True)
    note("pair behind a bulk run", times)
    if micro_batch is not None:
        waited = float(np.percentile(times, 95)) / micro_batch
        figures["pair behind a bulk run, p95, micro-batches"] = waited
    return figures


async def clients(engine: Engine, vocab_size: int, scale: float, rounds: int) -> dict[str, float]:
    """Flat tokens a second of 64 clients, few-shot and uniform, in this process and over HTTP.

    Each round has rows of its own, so that nothing of an earlier one is kept.
    """
    figures: dict[str, float] = {}
    async with _serving(engine) as port:
        for what, make in (("few-shot", _few_shot), ("uniform", _uniform)):
            seconds: dict[str, list[float]] = {"engine": [], "http": []}
            waits: list[float] = []
            tokens = 0
            for seed in range(2 * rounds):
                requests = make(Maker(vocab_size, scale, 1000 + seed))
                tokens = sum(row.num_inputs for rows in requests for row in rows)
                if seed % 2:
                    seconds["engine"].append(await _in_process(engine, requests))
                else:
                    found = await _over_http(port, requests)
                    seconds["http"].append(found["seconds"])
                    waits += found["waits"]
            for by, times in seconds.items():
                figures[f"{what} by {CLIENTS} clients, {by}, tok/s"] = tokens / min(times)
            for percent in (50, 95):
                wait = 1e3 * float(np.percentile(waits, percent))
                figures[f"{what} by {CLIENTS} clients, one request, p{percent}, ms"] = wait
            figures[f"http {what} / engine"] = min(seconds["engine"]) / min(seconds["http"])
    return figures


def _few_shot(maker: Maker) -> list[Request]:
    _, contexts = maker.few_shot(maker.size(4 * CLIENTS, CLIENTS))
    return [[maker.after(c, n) for n in maker.rng.integers(1, 7, 4).tolist()] for c in contexts]


def _uniform(maker: Maker) -> list[Request]:
    length = maker.size(512, 64)
    return [[maker.row(length, length // 16)] for _ in range(maker.size(2 * CLIENTS, CLIENTS))]


async def _in_process(engine: Engine, requests: list[Request]) -> float:
    waiting = iter(requests)

    async def client() -> None:
        for rows in waiting:
            await engine.score(rows)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - started


async def _over_http(port: int, requests: list[Request]) -> dict[str, Any]:
    """By a process of their own; seconds for all requests, and how long each waited."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(list(_bodies(requests)), file)
        file.flush()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(_CLIENTS_SCRIPT), _HOST, str(port), file.name, str(CLIENTS)),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the clients ended with {process.returncode}")
    return json.loads(out)


def _bodies(requests: list[Request]) -> Iterator[dict[str, Any]]:
    for rows in requests:
        context = rows[0].ids[: rows[0].start].tolist()
        yield {"items": [{"context": context, "continuations": [r.targets.tolist() for r in rows]}]}


@asynccontextmanager
async def _serving(engine: Engine) -> AsyncIterator[int]:
    settings = Settings(host=_HOST, port=0, log_level="warning")
    listener = bind(settings)
    server = Server(create_app(engine, settings), settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.leave()
        await serving
