"""Faults of the model, of memory, of its thread, of signals and of clients: what must happen then."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_server import FULL, HOLD
from fakes import BOOM, DIE, INFINITE, NAN, Running, error_of, loglikelihood, with_app
from sockets import GOOD, Served, with_server
from test_cli import FakeServer, body, fake_server

from mlxscore_server.out_of_memory import is_out_of_memory
from mlxscore_server.pulse import Pulse
from mlxscore_server.watchdog import SLOWER, TICKS, Watchdog

Post = Callable[[Any], "asyncio.Task[httpx.Response]"]


def asked(server: FakeServer, use: Callable[[httpx.AsyncClient, Post], Awaitable[None]]) -> None:
    """Use a client of a server process that is ready; `post` begins a request for scores."""
    url = server.url()
    server.until("ready")

    async def main() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await use(client, lambda given: asyncio.create_task(client.post("/score", json=given)))

    asyncio.run(main())


async def together(server: FakeServer, post: Post, bodies: Sequence[Any]) -> list[httpx.Response]:
    """The answers to requests whose rows wait together, and so share micro-batches."""
    held = post(body(chr(HOLD)))
    await asyncio.to_thread(server.until, "held")
    tasks = [post(given) for given in bodies]
    for _ in tasks:
        await asyncio.to_thread(server.until, "queued")
    server.let_go()
    assert (await held).status_code == 200
    return await asyncio.gather(*tasks)


def is_right(response: httpx.Response, *texts: str) -> bool:
    assert response.status_code == 200, response.text
    found = [result["scores"][0]["loglikelihood"] for result in response.json()["results"]]
    return found == [loglikelihood(text) for text in texts]


# --- rows ---


@pytest.mark.parametrize(
    ("bad", "code"), [(BOOM, "scoring_failed"), (NAN, "non_finite_logits"), (INFINITE, None)]
)
def test_a_bad_row_alone_gets_an_error_that_names_it(bad: int, code: str | None) -> None:
    items = [GOOD, {"context": "a", "continuation": f"x{chr(bad)}"}, GOOD]
    good = [f"text {i}" for i in range(20)]

    async def use(client: httpx.AsyncClient, post: Post) -> None:
        bodies = [{"items": items}, *map(body, good)]
        failed, *fine = await together(server, post, bodies)
        error = error_of(failed)
        assert failed.status_code == 500
        assert error.code == (code or "non_finite_logits")
        assert error.param is not None and error.param.startswith("items[1]")
        assert "secret" not in failed.text
        assert all(is_right(response, text) for response, text in zip(fine, good, strict=True))
        assert (await client.get("/health")).json() == {"status": "ok"}

    with fake_server("ok") as server:
        asked(server, use)


def test_many_bad_rows_of_many_callers() -> None:
    texts = [f"{i}{chr(BOOM) if i % 5 == 0 else ''}" for i in range(40)]

    async def use(app: Running) -> None:
        held = await app.hold()
        tasks = [asyncio.create_task(app.score(**body(text))) for text in texts]
        await app.waiting(sum(map(len, texts)))
        app.scorer.gate.set()
        assert (await held).status_code == 200
        for text, response in zip(texts, await asyncio.gather(*tasks), strict=True):
            assert response.status_code == (500 if chr(BOOM) in text else 200)
        # Eight of forty: halved again and again, far from each row on its own twice.
        assert sum(len(batch.rows) for batch in app.scorer.batches) < 40 * 6
        assert app.scorer.freed > 0

    with_app(use)


# --- memory ---


def test_where_memory_runs_out_all_is_scored_in_smaller_micro_batches() -> None:
    texts = [f"{i} {'x' * 30}" for i in range(60)]

    async def use(client: httpx.AsyncClient, post: Post) -> None:
        items = [{"context": "abc", "continuation": text} for text in texts]
        assert is_right(await post({"items": items}), *texts)

    with fake_server("little", "--log-level", "info") as server:
        asked(server, use)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    lowered = [line for line in server.lines if "memory ran out: micro-batches hold" in line]
    sizes = [int(re.findall(r"hold (\d+) tokens", line)[0]) for line in lowered]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 300


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("[malloc] Unable to allocate 8 bytes."), True),
        (RuntimeError("[malloc_or_wait] Unable to allocate 8 bytes."), True),
        (RuntimeError("[metal::malloc] Resource limit (499000) exceeded."), True),
        (
            RuntimeError(
                "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum "
                "allowed buffer size of 8 bytes."
            ),
            True,
        ),
        (
            RuntimeError(
                "[METAL] Command buffer execution failed: Insufficient Memory "
                "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
            ),
            True,
        ),
        (RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("[matmul] Last dimension of first input does not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_means_that_memory_ran_out(error: BaseException, is_memory: bool) -> None:
    assert is_out_of_memory(error) == is_memory


# --- the thread ---


def test_the_death_of_the_thread_answers_all_and_shows_in_health() -> None:
    async def use(app: Running) -> None:
        app.scorer.hold()
        dies = asyncio.create_task(app.score(**body(chr(DIE))))
        await asyncio.to_thread(app.scorer.entered.wait)
        queued = [asyncio.create_task(app.score(**body(f"{i}"))) for i in range(5)]
        await app.waiting(5)
        app.scorer.gate.set()
        for response in await asyncio.gather(dies, *queued):
            assert response.status_code == 503
            assert error_of(response).code == "engine_stopped"
        health = await app.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "failed"})

    with_app(use)

    async def die(client: httpx.AsyncClient, post: Post) -> None:
        held = post(body(chr(HOLD)))
        await asyncio.to_thread(server.until, "held")
        tasks = [post(body(text)) for text in (chr(DIE), "a", "b")]
        for _ in tasks:
            await asyncio.to_thread(server.until, "queued")
        server.let_go()
        found = [response.status_code for response in await asyncio.gather(held, *tasks)]
        assert found == [200, 503, 503, 503]

    with fake_server("ok") as server:
        asked(server, die)
        assert server.end() == 1


def test_a_thread_that_hangs_answers_all_and_ends_the_process() -> None:
    async def use(client: httpx.AsyncClient, post: Post) -> None:
        assert is_right(await post(body("b")), "b")
        held = post(body(chr(HOLD)))
        await asyncio.to_thread(server.until, "held")
        queued = [post(body("c")) for _ in range(3)]
        for response in await asyncio.gather(held, *queued):
            assert response.status_code == 503
            assert error_of(response).code == "engine_stopped"

    with fake_server("ok", "--hang-timeout", "1") as server:
        asked(server, use)
        assert server.process.wait(timeout=10) == 1
        server.end()
    log = "".join(server.lines)
    assert "the MLX thread hangs (--hang-timeout)" in log
    assert "sys.stdin.readline()" in log, "where it hangs is said"


def test_a_hang_shows_in_health() -> None:
    async def use(app: Running) -> None:
        assert (await app.score(**body("b"))).status_code == 200
        held = await app.hold()
        assert (await held).status_code == 503
        health = await app.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "failed"})
        assert (await app.score(**body("b"))).status_code == 503
        assert app.engine.stopped.is_set()

    with_app(use, hang_timeout=0.01)


def watched(use: Callable[[Watchdog, Pulse, list[str]], None], timeout: float = 1000) -> None:
    """A watchdog whose looks are the test's own: its timer is too slow to matter."""

    async def main() -> None:
        pulse, hangs = Pulse(), list[str]()
        watchdog = Watchdog(timeout, lambda: pulse, lambda: hangs.append("hangs"))
        use(watchdog, pulse, hangs)
        watchdog.leave()

    asyncio.run(main())


def test_progress_of_any_kind_is_no_hang() -> None:
    def use(watchdog: Watchdog, pulse: Pulse, hangs: list[str]) -> None:
        watchdog.enter()
        pulse.land(100.0)
        beats: list[Callable[[], None]] = [
            pulse.beat,
            lambda: pulse.start(10),
            lambda: pulse.land(5.0),
        ]
        for beat in beats * 3:
            for _ in range(TICKS):
                watchdog.look()
            beat()
        assert not hangs
        for _ in range(TICKS + 1):
            watchdog.look()
        assert hangs == ["hangs"]

    watched(use)


def test_a_long_micro_batch_is_waited_for_as_long_as_it_should_take_several_times_over() -> None:
    def use(watchdog: Watchdog, pulse: Pulse, hangs: list[str]) -> None:
        watchdog.enter()
        pulse.land(1.0)  # tokens a second: a large model on a small machine
        pulse.start(4000)  # an hour and more
        for _ in range(TICKS * SLOWER * 4):
            watchdog.look()
        assert not hangs
        watchdog.look()
        assert hangs == ["hangs"]

    watched(use)


def test_the_first_micro_batch_has_more_time() -> None:
    def use(watchdog: Watchdog, pulse: Pulse, hangs: list[str]) -> None:
        watchdog.enter()
        pulse.start(10)
        for _ in range(2 * TICKS):
            watchdog.look()
        assert not hangs
        for _ in range(2 * TICKS):
            watchdog.look()
        assert hangs

    watched(use)


@pytest.mark.parametrize("timeout", [0, 1000])
def test_the_watchdog_looks_only_while_someone_waits(timeout: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        call_later = loop.call_later
        loop.call_later = lambda *args, **more: (
            timers.append(call_later(*args, **more)) or timers[-1]
        )  # type: ignore[method-assign]
        watchdog = Watchdog(timeout, Pulse, lambda: None)
        assert not timers
        watchdog.enter()
        watchdog.enter()
        assert len(timers) == (1 if timeout else 0)
        watchdog.leave()
        assert not any(timer.cancelled() for timer in timers)
        watchdog.leave()
        assert all(timer.cancelled() for timer in timers)

    asyncio.run(main())


# --- signals ---


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
    ],
)
def test_a_second_signal_ends_at_once(first: signal.Signals, second: signal.Signals) -> None:
    async def use(client: httpx.AsyncClient, post: Post) -> None:
        held = post(body(chr(HOLD)))
        await asyncio.to_thread(server.until, "held")
        server.process.send_signal(first)
        await asyncio.to_thread(server.until, "stopping")
        server.process.send_signal(second)
        with pytest.raises(httpx.TransportError):
            await held

    with fake_server("ok") as server:
        asked(server, use)
        assert server.end() == 128 + second


def test_bad_rows_are_found_while_draining_too() -> None:
    async def use(client: httpx.AsyncClient, post: Post) -> None:
        held = post(body(chr(HOLD)))
        await asyncio.to_thread(server.until, "held")
        texts = ["a", chr(BOOM), "b", chr(NAN), "c"]
        tasks = [post(body(text)) for text in texts]
        for _ in tasks:
            await asyncio.to_thread(server.until, "queued")
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.until, "stopping")
        server.let_go()
        found = [response.status_code for response in await asyncio.gather(held, *tasks)]
        assert found == [200, 200, 500, 200, 500, 200]

    with fake_server("ok") as server:
        asked(server, use)
        assert server.end() == 0


def test_after_kill_9_it_starts_again_at_once_on_the_same_port() -> None:
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")
        with httpx.Client(base_url=url) as client:
            assert client.post("/score", json=body("b")).status_code == 200
            server.process.kill()  # with a connection open
            server.process.wait()
    port = url.rpartition(":")[2]
    with fake_server("ok", "--port", port) as server:
        assert server.url() == url
        server.until("ready")
        assert is_right(httpx.post(f"{url}/score", json=body("b")), "b")


# --- clients ---


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def until(true: Callable[[], bool]) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0)


async def leave_before(served: Served) -> None:
    await (await served.connect()).close()


async def leave_in_the_head(served: Served) -> None:
    wire = await served.connect()
    wire.writer.write(b"POST /score HTTP/1.1\r\nHo")
    await wire.writer.drain()
    await wire.close()


async def leave_in_the_body(served: Served) -> None:
    wire = await served.connect()
    await wire.send("POST /score HTTP/1.1\nContent-Length: 1000", b'{"items"')
    await served.requests(1)
    await wire.close()


SENT = json.dumps({"items": [GOOD] * 3}).encode()


async def leave_while_running(served: Served) -> None:
    await served.leave_while_running(SENT)
    served.app.scorer.gate.set()


async def leave_while_queued(served: Served) -> None:
    held = await served.app.hold()
    scored = len(served.app.scorer.batches)
    wire = await served.connect()
    await wire.send(f"POST /score HTTP/1.1\nContent-Length: {len(SENT)}", SENT)
    await served.app.waiting(3)
    await wire.close()
    await served.app.waiting(0)
    served.app.scorer.gate.set()
    assert (await held).status_code == 200
    assert len(served.app.scorer.batches) == scored, "rows of a leaver were scored"


async def leave_in_the_answer(served: Served) -> None:
    """Megabytes, of which the first kilobyte is read."""
    items = [{"context": "a", "continuation": "b" * 900}] * 10
    sent = json.dumps({"items": items, "top_logprobs": 20}).encode()
    wire = await served.connect()
    wire.writer.transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
    )
    await wire.send(f"POST /score HTTP/1.1\nContent-Length: {len(sent)}", sent)
    await wire.reader.readexactly(1000)
    wire.writer.transport.abort()


@pytest.mark.parametrize(
    "leave",
    [
        leave_before,
        leave_in_the_head,
        leave_in_the_body,
        leave_while_queued,
        leave_while_running,
        leave_in_the_answer,
    ],
)
def test_a_client_that_leaves_takes_all_that_was_its_own(
    leave: Callable[[Served], Awaitable[None]],
) -> None:
    async def use(served: Served) -> None:
        engine = served.app.engine

        def counts() -> dict[str, int]:
            return {
                "tasks": len(asyncio.all_tasks()),
                "requests": len(served.server.server_state.tasks),
                "connections": len(served.server.server_state.connections),
                "descriptors": descriptors(),
                "tokens": engine.waiting_tokens,
                "futures": len(engine._waiting),
            }

        # What is made once a process, such as pools' threads, is there after the first time.
        await leave(served)
        await until(lambda: not served.server.server_state.connections)
        before = counts() | {"requests": 0, "tokens": 0, "futures": 0}
        for _ in range(5):
            await leave(served)
        await until(lambda: all(count <= before[what] for what, count in counts().items()))
        await served.lives()

    with_server(use)


@contextmanager
def soft_limit(files: int) -> Iterator[None]:
    """What children inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections() -> None:
    """More than the server may have by its soft limit, which is macOS's here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = 1000 if hard == resource.RLIM_INFINITY else min(1000, hard - 200)
    with ExitStack() as stack:
        with soft_limit(256):
            server = stack.enter_context(fake_server("ok"))
        stack.enter_context(soft_limit(number + 150))
        url = server.url()
        server.until("ready")
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(number):
            stack.enter_context(socket.create_connection(address))
        with httpx.Client(base_url=url, timeout=30) as client:
            assert client.get("/health").json() == {"status": "ok"}
            assert is_right(client.post("/score", json=body("b")), "b")


# --- the disk, the clock ---


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is full")
def test_a_running_server_does_not_need_the_disk() -> None:
    """Its log cannot be written any more, and it has much to say."""

    async def use(client: httpx.AsyncClient, post: Post) -> None:
        assert (await post(body(chr(FULL)))).status_code == 200
        for text, status in ((chr(BOOM), 500), ("b", 200), (chr(NAN), 500), ("c", 200)):
            assert (await post(body(text))).status_code == status

    with fake_server("ok", "--log-level", "debug") as server:
        asked(server, use)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


# What a date is for: an answer's or a model card's "created", and a Retry-After that is a date.
_DATES = {
    "mlxscore_server/model.py",
    "mlxscore_server/routes/answer.py",
    "mlxscore_server/routes/choices.py",
    "mlxscore_server/routes/labels.py",
    "mlxscore_server/tracing.py",
    "mlxscore_client/http_errors.py",
}
_WALL_TIME = re.compile(r"\btime\.time\b|\bfrom time import\b|datetime\.(?:utc)?now|st_[mca]time")


def test_nothing_depends_on_the_time_of_day() -> None:
    root = Path(__file__).parent.parent
    found = {
        str(file.relative_to(package.parent))
        for package in (root / "server/mlxscore_server", root / "client/mlxscore_client")
        for file in package.rglob("*.py")
        if _WALL_TIME.search(file.read_text())
    }
    assert found <= _DATES
