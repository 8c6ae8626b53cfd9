"""`POST /score/stream` as time goes by: who reads slowly, who sends first, who leaves, who says nothing, and
a server that shuts down."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fakes import with_app
from sockets import GOOD, Served, Wire, with_server

from mlxscore_server import envelope, outbox
from mlxscore_server.outbox import Outbox
from mlxscore_server.timing import Span, Timing

ITEM = json.dumps(GOOD).encode() + b"\n"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is refused here does not send on."""
    monkeypatch.setattr(envelope, "_LINGER_SECONDS", 0.01)


async def begin(served: Served, query: str = "") -> Wire:
    """A stream's head; its body is to come, in chunks."""
    wire = await served.connect()
    wire.writer.write(
        f"POST /score/stream{query} HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    return wire


async def send(wire: Wire, data: bytes) -> None:
    wire.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if data else b"0\r\n\r\n")
    await wire.writer.drain()


async def head(wire: Wire) -> int:
    return int((await wire.reader.readuntil(b"\r\n\r\n")).split()[1])


async def chunk(wire: Wire) -> bytes:
    """The next piece of an answer; empty at its end."""
    size = int(await wire.reader.readline(), 16)
    data = await wire.reader.readexactly(size)
    await wire.reader.readexactly(2)
    return data


async def rest(wire: Wire) -> list[dict[str, Any]]:
    """All lines until the end of the answer."""
    data = b""
    while piece := await chunk(wire):
        data += piece
    return [json.loads(line) for line in data.splitlines()]


def test_answers_come_before_the_body_ends() -> None:
    async def use(served: Served) -> None:
        wire = await begin(served)
        await send(wire, ITEM[:10])
        for index in range(3):
            # The end of a line, and half of the next: only what is whole is answered.
            await send(wire, ITEM[10:] + ITEM[:10])
            if not index:
                assert await head(wire) == 200
            assert json.loads(await chunk(wire))["index"] == index
        await send(wire, ITEM[10:] + ITEM)
        await send(wire, b"")
        assert sorted(line["index"] for line in await rest(wire)) == [3, 4]

    with_server(use)


def test_a_client_that_sends_all_before_it_reads_gets_all_answers() -> None:
    count = 12_000  # megabytes of answers, more than buffers of sockets hold

    async def use(served: Served) -> None:
        wire = await begin(served, "?return_tokens=true")
        # The reader takes up no more than its limit of 64 KiB until it is asked.
        for _ in range(count // 100):
            await send(wire, ITEM * 100)
        await send(wire, b"")
        assert await head(wire) == 200
        lines = await rest(wire)
        assert sorted(line["index"] for line in lines) == list(range(count))
        assert all(line["scores"] for line in lines)

    with_server(use)


def test_nothing_more_is_read_while_answers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_UNSENT_BYTES", 10_000)
    boxes: list[Outbox] = []
    make = Outbox.__init__

    def noted(self: Outbox, ordered: bool) -> None:
        make(self, ordered)
        boxes.append(self)

    monkeypatch.setattr(Outbox, "__init__", noted)
    pieces, body = 0, bytearray()
    gate, stop = asyncio.Event(), 200

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        await asyncio.sleep(0)
        if pieces == stop:
            await asyncio.Event().wait()
        pieces += 1
        return {"type": "http.request", "body": ITEM * 50, "more_body": pieces < stop}

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.body":
            await gate.wait()
            body.extend(message["body"])

    async def use(app: Any) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/score/stream",
            "raw_path": b"/score/stream",
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/x-ndjson")],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
            "state": {},
        }
        asked = asyncio.create_task(app.app(scope, receive, sent))
        while not (boxes and boxes[0]._freed._waiters and boxes[0]._unsent > 10_000):
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        # What is unsent at most, what was read until the first answers came, and pieces in line.
        assert pieces < stop // 2
        gate.set()
        await asked
        assert body.count(b"\n") == 50 * stop

    with_app(use)


def test_room_is_bounded_by_items_by_bytes_and_by_what_is_unsent() -> None:
    async def use() -> None:
        box = Outbox(ordered=True)

        async def blocked(weights: dict[int, int], free: Callable[[], None]) -> None:
            entering = asyncio.create_task(box.enter(weights))
            for _ in range(3):
                await asyncio.sleep(0)
            assert not entering.done()
            free()
            await entering

        await box.enter({0: 10 * outbox.MAX_BYTES})  # alone, whatever it weighs
        await blocked({1: 1}, lambda: box.put(0, b"a"))
        await box.enter(dict.fromkeys(range(2, outbox.MAX_ITEMS + 1), 0))
        await blocked({9999: 0}, lambda: box.put(2, b"c"))
        box.put(1, b"x" * (outbox.MAX_UNSENT_BYTES + 1))
        await blocked({10_000: 0}, lambda: box.drop(box.peek()[1]))
        assert box.peek() == (b"c", 1), "in order, and each once"
        box.drop(1)
        assert box.peek() == (b"", 0)

    asyncio.run(use())


def test_a_client_that_leaves_takes_its_rows_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async def use(served: Served) -> None:
        await served.lives()
        before = len(asyncio.all_tasks())
        served.app.scorer.hold()
        wire = await begin(served)
        await send(wire, ITEM * 5000)  # more than is let in
        await asyncio.to_thread(served.app.scorer.entered.wait)
        await served.app.waiting(served.app.engine.waiting_tokens)
        await wire.close()
        await served.requests(0)
        assert served.app.engine.waiting_tokens == 0
        assert served.app.engine.room.requests == 0
        served.app.scorer.gate.set()
        await served.lives()
        for opened in served.opened:
            await opened.close()
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0)

    with_server(use)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info]


def test_a_server_that_shuts_down_answers_what_is_queued_and_says_so() -> None:
    async def use(served: Served) -> None:
        served.app.scorer.hold()
        wire, idle = await begin(served), await begin(served)
        await send(idle, b" ")
        await send(wire, ITEM * 3)
        await asyncio.to_thread(served.app.scorer.entered.wait)
        await served.requests(2)
        draining = asyncio.create_task(served.app.engine.drain(60))
        assert await head(idle) == 503, "nothing was answered: an error like any other"
        await send(wire, ITEM * 3)
        served.app.scorer.gate.set()
        assert await head(wire) == 200
        *answered, last = await rest(wire)
        assert [line["index"] for line in answered] == [0, 1, 2]
        assert set(last) == {"error"}
        assert last["error"]["code"] == "draining"
        await draining

    with_server(use)


def test_who_says_nothing_is_cut_off_once_all_is_answered() -> None:
    async def use(served: Served) -> None:
        wire, silent = await begin(served), await begin(served)
        await send(wire, ITEM + ITEM[:9])
        assert await head(wire) == 200
        *answered, last = await rest(wire)
        assert [line["index"] for line in answered] == [0]
        assert last["error"]["code"] == "body_timeout"
        assert await head(silent) == 408

    with_server(use, body_timeout=0.05)


def test_a_client_waits_for_answers_as_long_as_it_takes() -> None:
    async def use(served: Served) -> None:
        served.app.scorer.hold()
        wire, silent = await begin(served), await begin(served)
        await send(wire, ITEM)
        await asyncio.to_thread(served.app.scorer.entered.wait)
        # Meanwhile the time of one that nobody works for is over.
        assert await head(silent) == 408
        served.app.scorer.gate.set()
        await send(wire, b"")
        assert await head(wire) == 200
        assert [line["index"] for line in await rest(wire)] == [0]

    with_server(use, body_timeout=0.05)


def test_the_time_that_a_request_gives_itself() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        served.app.scorer.hold()
        wire.writer.write(
            b"POST /score/stream HTTP/1.1\r\nHost: localhost\r\nX-Request-Timeout: 0.05\r\n"
            b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%b"
            % (len(ITEM), ITEM)
        )
        assert await head(wire) == 504
        served.app.scorer.gate.set()
        # The operator's limit is one for requests that end.
        other = await begin(served)
        await send(other, ITEM)
        assert await head(other) == 200

    with_server(use, request_timeout=1e-9)


def test_one_line_of_the_log_and_one_span_a_stage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mlxscore")

    async def use(served: Served) -> None:
        wire = await begin(served)
        await send(wire, ITEM * 3000)
        await send(wire, b"")
        await head(wire)
        await rest(wire)
        await served.requests(0)

    with_server(use)
    (record,) = [r for r in caplog.records if r.getMessage() == "request"]
    fields = record.__dict__["fields"]
    assert fields["route"] == "/score/stream"
    assert fields["rows"] == 3000
    assert fields["tokens"] == 3000

    timing = Timing(merges=True)
    for span in (
        Span("queue", 3, 4),
        Span("compute", 4, 6),
        Span("queue", 1, 2),
        Span("queue", 4, 9),
    ):
        timing.note(span)
    assert timing.spans == [Span("queue", 1, 9), Span("compute", 4, 6)]
