"""The process's life: bind, listen while the model loads, serve, drain, exit with a true code."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from functools import partial
from typing import Any, NoReturn, cast

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette

from mlxscore_server.connections import Door, Limited
from mlxscore_server.descriptors import raise_limit
from mlxscore_server.engine import Engine
from mlxscore_server.errors import StartupError
from mlxscore_server.hosts import is_loopback
from mlxscore_server.routes.metrics import metrics_app
from mlxscore_server.settings import Settings
from mlxscore_server.tracing import Tracing

log = logging.getLogger("mlxscore")

_BACKLOG = 2048
# Longer than clients keep an idle connection (httpx 5 s, aiohttp 15 s): were it no longer, a request might
# meet the end of its connection half-way and be lost.
_KEEP_ALIVE_SECONDS = 75
# Answers that are ready when the drain ends have this long to reach clients that read slowly.
_FAREWELL_SECONDS = 5
_SCRAPE_SECONDS = 1

# When Python looks for garbage: see the module gc. With its own (700, 10, 10) a body of 250,000 items holds
# all threads up for 90 ms at once, not 22 ms, and takes a quarter longer to read (measured).
_GARBAGE = (20_000, 10, 100)


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers, and without its tick ten times a second."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # All that is done with it is to call it.
                http=cast(Any, partial(Limited, door=Door(settings))),
                log_config=None,
                access_log=False,  # it would write whatever stands behind a question mark
                lifespan="off",  # the engine's life is the process's, not the application's
                ws="none",
                server_header=False,
                date_header=False,  # what the tick is for; envelope.py writes it
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_FAREWELL_SECONDS,
            )
        )
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Close the door and the idle connections, let answers go out; then `serve` returns."""
        self._leaving.set()

    async def main_loop(self) -> None:
        await self._leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def bind(settings: Settings) -> socket.socket:
    """A socket that listens at the address of the settings; raises StartupError where it cannot."""
    return _listen(settings.host, settings.port, "--port")


def _listen(host: str, port: int, flag: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" has two addresses; 127.0.0.1 is the one that scripts write out.
        family, kind, protocol, _, address = min(found, key=lambda a: a[0] != socket.AF_INET)
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            undo.pop_all()
    except (OSError, UnicodeError) as error:  # UnicodeError: not even a possible host name
        reason = getattr(error, "strerror", None) or str(error)
        raise StartupError(f"cannot listen on {host}:{port}: {reason} (--host, {flag})") from error
    return listener


def serve(app: FastAPI, engine: Engine, settings: Settings) -> int:
    """Run until a signal or the engine ends it; the exit code.

    0: told to stop, and all that was queued is answered. 1: the scoring thread died or hangs. Raises
    StartupError where the port is taken or the model cannot be loaded.
    """
    raise_limit()
    with contextlib.ExitStack() as listeners:
        main = listeners.enter_context(bind(settings))
        apart = None
        if settings.metrics_port is not None:
            apart = _listen(settings.host, settings.metrics_port, "--metrics-port")
            listeners.enter_context(apart)
        return asyncio.run(_serve(app, engine, settings, main, apart))


async def _serve(
    app: FastAPI,
    engine: Engine,
    settings: Settings,
    listener: socket.socket,
    for_metrics: socket.socket | None,
) -> int:
    told = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, _on_signal, sign, told)
    server = Server(app, settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    engine.start()
    log.info("listening on %s", _url(listener))
    if not app.state.keys and not is_loopback(listener.getsockname()[0]):
        log.warning(
            "whoever reaches %s can use it: --api-key or --api-key-file asks for a key",
            _url(listener),
        )
    try:
        async with _metrics_apart(app, settings, for_metrics):
            return await _live(engine, settings, told, serving)
    finally:
        server.leave()
        await _end_both(engine, serving)
        tracing: Tracing | None = app.state.tracing
        if tracing is not None:
            await tracing.close()


@contextlib.asynccontextmanager
async def _metrics_apart(
    app: FastAPI, settings: Settings, listener: socket.socket | None
) -> AsyncGenerator[None]:
    """The server of --metrics-port, if there is one."""
    if listener is None:
        yield
        return
    server = Server(metrics_app(app.state.metrics), settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    log.info("metrics at %s/metrics", _url(listener))
    try:
        yield
    finally:
        server.leave()
        # A scraper that reads slowly must not hold up the end.
        await asyncio.wait({serving}, timeout=_SCRAPE_SECONDS)


async def _live(
    engine: Engine, settings: Settings, told: asyncio.Event, serving: "asyncio.Task[None]"
) -> int:
    """Until the process should end; the exit code."""
    loading = asyncio.create_task(engine.ready())
    stopping = asyncio.create_task(told.wait())
    stopped = asyncio.create_task(engine.stopped.wait())
    try:
        await asyncio.wait({loading, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            _check_loaded(loading)
            _spare_collector()
            log.info("ready: %s", engine.loaded.card.id)
            await asyncio.wait({stopping, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not told.is_set():
            log.critical("the scoring thread has ended or hangs, and this process ends with it")
            return 1
        if engine.state == "loading":  # nobody can be waiting
            log.info("stopping, before the model was loaded")
            return 0
        log.info("stopping: what is queued has %g s", settings.drain_timeout)
        await engine.drain(settings.drain_timeout)
        return 0 if engine.failure is None else 1
    finally:
        for task in (loading, stopping, stopped):
            task.cancel()


def _spare_collector() -> None:
    """All stands still while Python looks for garbage in cycles: in what is loaded there is none, and in
    what a large request brings it need not look after each 700 objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)


def _check_loaded(loading: "asyncio.Task[None]") -> None:
    error = loading.exception()
    if error is None or isinstance(error, StartupError):
        loading.result()
        return
    log.debug("the model cannot be loaded", exc_info=error)
    what = (str(error).strip().splitlines() or ["no reason given"])[0]
    raise StartupError(
        f"the model cannot be loaded: {type(error).__name__}: {what} (--log-level debug says where)"
    ) from error


async def _end_both(engine: Engine, serving: "asyncio.Task[None]") -> None:
    if engine.state == "loading":
        await serving  # loading cannot be interrupted: the process ends without it
    elif engine.stopped.is_set():
        await serving  # first: finished scores are still being written as JSON by the engine's pool
        await engine.close()
    else:
        # Work was left over: whoever waits for it is told so while the server leaves. Bounded, for a
        # thread that is stuck in the device must not keep the process alive.
        closing = asyncio.wait_for(engine.close(), _FAREWELL_SECONDS)
        await asyncio.gather(serving, closing, return_exceptions=True)


def _on_signal(sign: signal.Signals, told: asyncio.Event) -> None:
    if told.is_set():
        # Whoever sends a second one does not want to wait.
        log.warning("a second %s: ending at once", sign.name)
        end(128 + sign)
    told.set()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def end(code: int) -> NoReturn:
    """End the process now. Not by the interpreter's own exit: in a process where a thread ran a model,
    MLX's compiled functions abort that now and then, and the exit code would lie to supervisors."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
