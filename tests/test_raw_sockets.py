"""Clients that write what no library would, stop half-way, or never read: the server answers the others
and keeps nothing of it. (What is no HTTP, and bodies over the limit: test_bad_input.py.)"""

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from fakes import error_of, loglikelihood
from sockets import Served, Wire, with_server


def requests(*texts: str, head: str = "") -> bytes:
    """Requests for scores of these continuations, one after the other."""
    sent = b""
    for text in texts:
        body = json.dumps({"items": [{"context": "a", "continuation": text}]}).encode()
        lines = (
            f"POST /score HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        )
        sent += lines.encode() + body
    return sent


async def scored(wire: Wire, text: str) -> None:
    answer = await wire.answer()
    assert answer.status_code == 200
    assert answer.json()["results"][0]["scores"][0]["loglikelihood"] == loglikelihood(text)


async def reset(wire: Wire) -> None:
    """End the connection without a farewell: what is under way meets a reset."""
    peer = wire.writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.writer.transport.abort()
    await wire.close()


async def counts(served: Served) -> tuple[int, int, int]:
    """Connections and tasks of the server, once they have come to rest, and open descriptors."""
    await served.requests(0)
    while served.server.server_state.connections:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks()), len(os.listdir("/dev/fd")), served.app.engine.waiting_tokens


def attacked(
    caplog: pytest.LogCaptureFixture, attack: Callable[[Served], Awaitable[None]], **settings: Any
) -> None:
    """Whatever the attack does: the server scores meanwhile and after, and nothing of it stays."""

    async def use(served: Served) -> None:
        await served.lives()
        await closed(served)
        before = await counts(served)
        await attack(served)
        await served.lives()
        await closed(served)
        assert await counts(served) == before

    with_server(use, **settings)
    bad = [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info]
    assert not [(r.getMessage(), r.exc_text) for r in bad]


async def closed(served: Served) -> None:
    for wire in served.opened:
        await wire.close()
    served.opened.clear()


HALVES = [
    b"",
    b"G",
    b"POST /score HTTP/1.1\r\n",
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Le",
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
    b'POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"items":',
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffff",
]


@pytest.mark.parametrize("farewell", [Wire.close, reset])
def test_half_requests(
    caplog: pytest.LogCaptureFixture, farewell: Callable[[Wire], Awaitable[None]]
) -> None:
    async def attack(served: Served) -> None:
        halves = [await served.connect() for _ in range(5) for _ in HALVES]
        for wire, half in zip(halves, HALVES * 5, strict=True):
            wire.writer.write(half)
        await served.requests(5 * 5)  # as many as have their head: each waits for its body
        await served.lives()  # while they are all there
        for wire in halves:
            await farewell(wire)

    attacked(caplog, attack)


def test_pipelined_requests_are_answered_in_their_order(caplog: pytest.LogCaptureFixture) -> None:
    async def attack(served: Served) -> None:
        wire = await served.connect()
        texts = [f"text {i}" for i in range(50)]
        wire.writer.write(requests(*texts))
        for text in texts:
            await scored(wire, text)

    attacked(caplog, attack)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b'{"items": []}\r\n\r\n',
        b"POST /score HTTP/1.1\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_rubbish_after_good_requests(caplog: pytest.LogCaptureFixture, rubbish: bytes) -> None:
    async def attack(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(requests("first", "second") + rubbish)
        await scored(wire, "first")
        await scored(wire, "second")
        # Who sent it learns of it, and the connection ends.
        refused = await wire.answer()
        assert refused.status_code == 400
        assert error_of(refused).code == "invalid_http"
        assert await wire.reader.read() == b""

    attacked(caplog, attack)


def test_a_length_that_is_too_short(caplog: pytest.LogCaptureFixture) -> None:
    async def attack(served: Served) -> None:
        wire = await served.connect()
        sent = requests("b" * 100)
        body = sent.partition(b"\r\n\r\n")[2]
        wrong = sent.replace(b"Length: %d" % len(body), b"Length: %d" % (len(body) - 9))
        wire.writer.write(wrong + b"\r\n\r\n")
        answer = await wire.answer()
        assert (answer.status_code, error_of(answer).code) == (400, "invalid_json")
        # Its end is the start of no request.
        assert error_of(await wire.answer()).code == "invalid_http"
        assert await wire.reader.read() == b""

    attacked(caplog, attack)


def test_a_length_that_is_too_long_takes_the_next_request_for_its_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def attack(served: Served) -> None:
        wire = await served.connect()
        sent, following = requests("b"), requests("c")
        length = len(sent.partition(b"\r\n\r\n")[2])
        wrong = length + len(following)
        wire.writer.write(sent.replace(b"Length: %d" % length, b"Length: %d" % wrong) + following)
        answer = await wire.answer()
        assert (answer.status_code, error_of(answer).code) == (400, "invalid_json")
        wire.writer.write(requests("d"))
        await scored(wire, "d")

    attacked(caplog, attack)


@pytest.mark.parametrize(
    "headers",
    [b"X: " + b"x" * 2**20, b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(60_000))],
    ids=["one", "many"],
)
def test_a_megabyte_of_headers(caplog: pytest.LogCaptureFixture, headers: bytes) -> None:
    async def attack(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n")
        # It may be refused before all of it is sent; then the sender may meet a reset instead.
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            answer = await wire.answer()
            assert answer.status_code in (400, 431)
            assert error_of(answer).message
        with suppress(ConnectionError):
            assert await wire.reader.read() == b""

    attacked(caplog, attack)


def large() -> bytes:
    """A request whose answer has many megabytes."""
    item = {"context": "a", "continuation": "b" * 900}
    body = json.dumps({"items": [item] * 20, "top_logprobs": 20}).encode()
    head = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("farewell", [Wire.close, reset])
def test_clients_that_never_read_their_answers(
    caplog: pytest.LogCaptureFixture, farewell: Callable[[Wire], Awaitable[None]]
) -> None:
    async def attack(served: Served) -> None:
        wires = [await served.connect() for _ in range(2)]
        for wire in wires:
            # Not read by this side of the loop either: what the kernel cannot hold stays there.
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            wire.writer.write(large())
        await served.requests(len(wires))
        while not any(c.flow.write_paused for c in served.server.server_state.connections):
            await asyncio.sleep(0)
        await served.lives()
        for wire in wires:
            await farewell(wire)

    attacked(caplog, attack)


def test_a_reset_while_the_model_has_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    async def attack(served: Served) -> None:
        held = await served.app.hold()
        wires = [await served.connect() for _ in range(10)]
        for wire in wires:
            wire.writer.write(requests("bc"))
        await served.app.waiting(10 * 2)
        for wire in wires:
            await reset(wire)
        await served.app.waiting(0)
        served.app.scorer.gate.set()
        assert (await held).json()["results"]

    attacked(caplog, attack)


def test_hundreds_of_connections_that_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def attack(served: Served) -> None:
        wires = [await served.connect() for _ in range(300)]
        while len(served.server.server_state.connections) < len(wires):
            await asyncio.sleep(0)
        await served.lives()

    attacked(caplog, attack)


def test_a_body_of_one_byte_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    async def attack(served: Served) -> None:
        wire = await served.connect()
        for byte in requests("slow"):
            wire.writer.write(bytes([byte]))
            await wire.writer.drain()
            await asyncio.sleep(0)
        await scored(wire, "slow")

    attacked(caplog, attack)
