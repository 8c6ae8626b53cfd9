"""The process's life: bind, listen while the model loads, serve, drain, exit with a true code."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI

from mlxscore_server.engine import Engine
from mlxscore_server.errors import StartupError
from mlxscore_server.settings import Settings

log = logging.getLogger("mlxscore")

# Answers that are ready when the drain ends have this long to reach clients that read slowly.
_FAREWELL_SECONDS = 5


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def bind(settings: Settings) -> socket.socket:
    """A socket that listens at the address of the settings; raises StartupError where it cannot."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise StartupError(
            f"cannot listen on {settings.host}:{settings.port}: {reason} (--host, --port)"
        ) from error
    return listener


def serve(app: FastAPI, engine: Engine, settings: Settings) -> int:
    """Run until a signal or the engine ends it; the exit code.

    0: told to stop, and all that was queued is answered. 1: the scoring thread died, or a second
    signal. Raises StartupError where the port is taken or the model cannot be loaded.
    """
    return asyncio.run(_serve(app, engine, settings, bind(settings)))


async def _serve(app: FastAPI, engine: Engine, settings: Settings, listener: socket.socket) -> int:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=settings.log_level == "debug",
        log_level="warning" if settings.log_level != "debug" else "debug",
        lifespan="off",
        timeout_graceful_shutdown=_FAREWELL_SECONDS,
    )
    server = _Server(config)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, _on_signal, sign, told, server)
    engine.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    log.info("listening on %s", _url(listener))
    loading = asyncio.create_task(_announce(engine))
    stopping = asyncio.create_task(told.wait())
    stopped = asyncio.create_task(engine.stopped.wait())
    tasks = (loading, stopping, stopped, serving)
    try:
        await asyncio.wait({stopping, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        if told.is_set():
            log.info("stopping: what is queued has %g s", settings.drain_timeout)
            await engine.drain(settings.drain_timeout)
        await engine.close()
        server.should_exit = True
        await serving
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(engine.failure, StartupError):
        raise engine.failure
    return 0 if told.is_set() and engine.failure is None else 1


def _on_signal(sign: signal.Signals, told: asyncio.Event, server: uvicorn.Server) -> None:
    if told.is_set():
        # A second signal: whoever sends it does not want to wait.
        from mlxscore_server.cli import leave

        log.warning("a second %s: ending at once", sign.name)
        leave(1)
    told.set()


async def _announce(engine: Engine) -> None:
    try:
        await engine.ready()
    except Exception as error:
        if not isinstance(error, StartupError):
            log.error("the model could not be loaded", exc_info=error)
        return
    log.info("ready: %s", engine.loaded.card.id)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
