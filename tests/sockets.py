"""The application behind the real server in the test's own loop, and clients that no library would be."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from fakes import Running, with_app

from mlxscore_server.server import Server, bind
from mlxscore_server.settings import Settings

GOOD = {"context": "a", "continuation": "b"}
"""An item that any model scores."""


class Wire:
    """A connection to the server that can do what no good client does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, head: str, body: bytes = b"") -> None:
        lines = ["Host: localhost", "Content-Type: application/json", *head.splitlines()[1:]]
        request = "\r\n".join([head.splitlines()[0], *lines, "", ""]).encode() + body
        self.writer.write(request)
        await self.writer.drain()

    async def answer(self) -> httpx.Response:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        length = int({k.lower(): v for k, v in headers.items()}["content-length"])
        content = await self.reader.readexactly(length)
        return httpx.Response(int(head[0].split()[1]), headers=headers, content=content)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):  # the server may have been the first
            await self.writer.wait_closed()


@dataclass
class Served:
    """The application behind uvicorn, in the test's own loop."""

    app: Running
    server: Server
    port: int
    opened: list[Wire] = field(default_factory=list[Wire])

    async def connect(self) -> Wire:
        self.opened.append(Wire(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.opened[-1]

    async def requests(self, count: int) -> None:
        """Let the loop run until the server is busy with exactly this many requests."""
        while len(self.server.server_state.tasks) != count:
            await asyncio.sleep(0)

    async def leave_while_running(self, body: bytes) -> None:
        """A client that leaves while its rows are scored; the model stands still until its gate opens."""
        self.app.scorer.hold()
        wire = await self.connect()
        await wire.send(f"POST /score HTTP/1.1\nContent-Length: {len(body)}", body)
        await asyncio.to_thread(self.app.scorer.entered.wait)
        await wire.close()
        await self.requests(0)

    async def lives(self) -> None:
        """A neighbour is served as ever."""
        neighbour = await self.connect()
        body = json.dumps({"items": [GOOD]}).encode()
        await neighbour.send(f"POST /score HTTP/1.1\nContent-Length: {len(body)}", body)
        assert (await neighbour.answer()).status_code == 200


def with_server(use: Callable[[Served], Awaitable[None]], **settings: Any) -> None:
    async def serve(app: Running) -> None:
        server = Server(app.app, app.settings)
        listener = bind(Settings(port=0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        served = Served(app, server, listener.getsockname()[1])
        try:
            await use(served)
        finally:
            app.scorer.gate.set()
            for wire in served.opened:
                await wire.close()
            server.leave()
            await serving

    with_app(serve, **settings)
