"""An answer that is written while its request is read. Knows the order of things, not what a line holds."""

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice

from fastapi import Response
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from mlxscore_server import timing
from mlxscore_server.body import LINES
from mlxscore_server.engine import Engine
from mlxscore_server.errors import MlxscoreError, NotReady, ScoringFailed
from mlxscore_server.lines import Line, Lines
from mlxscore_server.outbox import Outbox
from mlxscore_server.routes.intake import Intake
from mlxscore_server.routes.run import written
from mlxscore_server.routes.stream_items import Asking, Part, error_body
from mlxscore_server.settings import Settings
from mlxscore_server.terms import Terms
from mlxscore_server.timing import stage

log = logging.getLogger("mlxscore")

# Lines that are parsed and tokenised in one go, in some milliseconds.
_GROUP = 256


class Streamed(Response):
    """Reads items as there is room for them, and writes results as they are there."""

    media_type = LINES[0]

    def __init__(self, engine: Engine, settings: Settings, asking: Asking, terms: Terms) -> None:
        self.status_code = 200
        self.background = None
        # A proxy that collects answers would turn a stream into a file.
        self.init_headers({"X-Accel-Buffering": "no"})
        self._engine, self._settings = engine, settings
        self._asking, self._terms = asking, terms
        self._outbox = Outbox(asking.options.ordered)
        self._scoring = set[asyncio.Task[None]]()
        self._ended: MlxscoreError | None = None
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (timed := timing.current()) is not None:
            timed.merges = True
        self._send = send
        with self._engine.room.place():
            try:
                async with self._terms.deadline():
                    await self._run(receive)
            except MlxscoreError as error:
                self._ended = error
        if self._ended is None:
            return await self._write(b"", more=False)
        if not self._started:
            raise self._ended
        log.info("a stream ends before its time: %s", self._ended.message)
        while await self._write_due():
            pass
        await self._write(to_json({"error": error_body(self._ended)}) + b"\n", more=False)

    async def _run(self, receive: Receive) -> None:
        intake = Intake(receive, self._settings.body_timeout, self._outbox.at_rest)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                taking = self._tasks.create_task(intake.run())
                self._reading = self._tasks.create_task(self._read(intake))
                self._reading.add_done_callback(lambda _: self._outbox.changed.set())
                watching = self._tasks.create_task(self._watch())
                while True:
                    self._outbox.changed.clear()
                    if await self._write_due():
                        continue
                    if self._reading.done() and not self._scoring:
                        break
                    await self._outbox.changed.wait()
                taking.cancel()
                watching.cancel()
        except BaseExceptionGroup as group:
            # The first is what went wrong; it has cancelled the others.
            raise group.exceptions[0] from None

    # --- what comes in ---

    async def _read(self, intake: Intake) -> None:
        lines = Lines(self._settings.max_request_bytes)
        async for piece in intake.pieces():
            await self._take(lines.feed(piece))
        await self._take(lines.end())

    async def _take(self, lines: Iterator[Line]) -> None:
        while group := list(islice(lines, _GROUP)):
            await self._outbox.enter({line.index: self._asking.weight(line) for line in group})
            # One group of a stream at a time: others want to use the threads too.
            with stage("tokenise"):
                parts, refused = await self._engine.encode(self._asking.understand, group)
            for one in refused:
                self._outbox.put(one.index, one.to_line())
            for part in parts:
                task = self._tasks.create_task(self._score(part))
                self._scoring.add(task)
                task.add_done_callback(self._scored)

    def _scored(self, task: "asyncio.Task[None]") -> None:
        self._scoring.discard(task)
        self._outbox.changed.set()

    async def _score(self, part: Part) -> None:
        try:
            scored = await self._engine.score(
                part.rows, caller=self._terms.caller, low=self._terms.low, patient=True
            )
            lines = await written(self._engine, part.numbers, part.to_lines, scored)
        except ScoringFailed as error:
            if len(part.items) > 1:
                # Whichever it was: the others are not to blame.
                await asyncio.gather(*(self._score(one) for one in part.apart()))
                return
            lines = [part.refused(error)]
        except MlxscoreError as error:
            self._ended = error
            self._reading.cancel()
            return
        for index, line in lines:
            self._outbox.put(index, line)

    async def _watch(self) -> None:
        """When the server shuts down nothing more is read; what is queued is answered."""
        await self._engine.draining.wait()
        if not self._reading.done():
            self._ended = NotReady("the server is shutting down", code="draining", retry_after=5.0)
            self._reading.cancel()

    # --- what goes out ---

    async def _write_due(self) -> bool:
        """Send some of what is due; whether there was anything."""
        body, count = self._outbox.peek()
        if count:
            await self._write(body)
            # Not before: who is cancelled while it waits to send has not sent.
            self._outbox.drop(count)
        return bool(count)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            # Not before there is something to say: what goes wrong until then has a status of its own.
            await self._send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            self._started = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
