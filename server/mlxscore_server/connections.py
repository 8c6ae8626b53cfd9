"""How many connections there may be, and how long a client may take over what it sends and receives."""

import asyncio
import uuid
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import h11

from mlxscore_server.bad_http import Protocol
from mlxscore_server.envelope import respond
from mlxscore_server.errors import BodyTimeout, MlxscoreError, TooManyConnections
from mlxscore_server.settings import Settings

RESERVED = 16
"""Connections beside --max-connections on which /health and /ready are answered, and nothing else."""
# A connection of those that says nothing makes place for another.
_RESERVED_SECONDS = 5.0
# Refused connections that are kept, for so long, until the client has read why.
_LINGERING, _LINGER_SECONDS = 64, 5.0


class Door:
    """What all connections of a server have in common."""

    def __init__(self, settings: Settings) -> None:
        self.max_connections = settings.max_connections
        self.body_timeout = settings.body_timeout
        self.lingering = 0


class Limited(Protocol):
    """uvicorn's protocol with a bound on connections, and on the time between two states of one."""

    def __init__(self, *args: Any, door: Door, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._door = door
        self._refused = False
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        over = len(self.connections) - self._door.max_connections
        if over > RESERVED:
            return self._refuse()
        seconds = float(self.timeout_keep_alive)
        if over > 0:
            self.app_state = {**self.app_state, "reserved": self._door.max_connections}
            seconds = _RESERVED_SECONDS
        # uvicorn sets its own only after the first answer.
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        self._time_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._time_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing = _cancelled(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._reading, self._writing = _cancelled(self._reading), _cancelled(self._writing)
        if self._refused:
            self._door.lingering -= 1

    def _refuse(self) -> None:
        """Say so at once, whatever is asked for."""
        self.connections.discard(self)
        self._refused = True
        self._door.lingering += 1
        self._say(TooManyConnections.beyond(self._door.max_connections))
        if self._door.lingering > _LINGERING:
            return self.transport.close()
        # To close now would reset the connection as soon as the request comes, and the answer be lost.
        self.transport.write_eof()
        self._reading = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _time_reading(self) -> None:
        """Set a clock while part of a head is here, or the rest of a body that is not read any more.

        Bodies that are read have a clock of their own, where they are read.
        """
        theirs = self.conn.their_state
        head = theirs is h11.IDLE and bool(self.conn.trailing_data[0])
        rest = theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if not (head or rest):
            self._reading = _cancelled(self._reading)
        elif self._reading is None:
            self._reading = self._later(self._late)

    def _late(self) -> None:
        if self.conn.our_state is h11.IDLE:
            self._say(
                BodyTimeout(
                    f"the request's head was not here within {self._door.body_timeout:g} s "
                    "(--body-timeout)"
                )
            )
        self.transport.close()

    def _time_writing(self, before: int | None = None) -> None:
        """End the connection once nothing has been taken up between two looks."""
        now = self.transport.get_write_buffer_size()
        if before is not None and now >= before:
            return self.transport.abort()
        self._writing = self._later(lambda: self._time_writing(now))

    def _later(self, do: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(self._door.body_timeout, do)

    def _say(self, error: MlxscoreError) -> None:
        """Answer what never reaches the application."""
        answer = respond(error)
        status = HTTPStatus(answer.status_code)
        answer.headers["X-Request-Id"] = uuid.uuid4().hex
        answer.headers["Date"] = formatdate(usegmt=True)
        for event in (
            h11.Response(
                status_code=status, headers=answer.raw_headers, reason=status.phrase.encode()
            ),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
