"""Who is let in, who is next, and how long anyone may take: limits that say their name, and turns."""

import asyncio
import gzip
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import Running, error_of, loglikelihood, with_app
from hostile import GOOD as GOODS
from hostile import Hostile, corpus
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic_core import from_json
from sockets import GOOD, Served, Wire, with_server

from mlxscore_client import wire
from mlxscore_server import body as body_module
from mlxscore_server import connections, envelope, large_json, server, unpacked
from mlxscore_server.body import parse
from mlxscore_server.connections import RESERVED
from mlxscore_server.errors import BodyTooLarge, InvalidRequest
from mlxscore_server.queue import LOW_SHARE, Job, ScoreQueue
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings

TOP = {"top_logprobs": 1}
BODY = json.dumps({"items": [GOOD]}).encode()
SOON = 0.001
"""Seconds, for a limit that is to be met."""


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


# --- the queue: turns and priority ---


def job(rows: int, tokens: int = 10, caller: str = "", low: bool = False) -> Job:
    row = Row(np.arange(tokens + 1, dtype=np.int32), 1)
    return Job([row] * rows, lambda _: None, caller=caller, low=low)


def window(queue: ScoreQueue, tokens: int) -> Counter[Job]:
    return Counter(entry.job for entry in queue.take(tokens) or [])


def test_callers_have_equal_shares_however_many_jobs_each_has() -> None:
    queue = ScoreQueue(10**9)
    many, one = [job(100, caller="many") for _ in range(9)], job(100, caller="one")
    for each in [*many, one]:
        queue.put(each)
    taken = window(queue, 200)
    assert taken[one] == 10
    assert sum(taken[each] for each in many) == 10
    # And one caller's jobs share what is its own.
    assert max(taken[each] for each in many) <= 2


def test_small_newcomers_are_taken_by_turns_too() -> None:
    queue = ScoreQueue(10**9)
    flood, single = [job(1, caller="flood") for _ in range(50)], job(1, caller="single")
    for each in [*flood, single]:
        queue.put(each)
    assert single in {entry.job for entry in queue.take_small(20)}


def test_low_priority_gets_its_share_and_what_others_leave() -> None:
    queue = ScoreQueue(10**9)
    low, normal = job(10_000, caller="a", low=True), job(300, caller="b")
    queue.put(low)
    queue.put(normal)
    taken: Counter[Job] = Counter()
    for _ in range(10):
        taken += window(queue, 10 * 2 * LOW_SHARE)
    assert taken[low] == 10 * 2
    assert taken[normal] == 10 * 2 * (LOW_SHARE - 1)
    while queue.tokens > low.waiting_tokens:
        window(queue, 1000)
    assert window(queue, 1000) == {low: 100}
    # Who can wait does not go before the rest of a window.
    late = job(1, caller="c", low=True)
    queue.put(late)
    assert queue.take_small(1000) == []


def test_low_priority_with_rows_that_are_larger_than_its_share() -> None:
    queue = ScoreQueue(10**9)
    low, normal = job(100, tokens=500, low=True), job(10**5, tokens=1)
    queue.put(low)
    queue.put(normal)
    taken: Counter[Job] = Counter()
    for _ in range(100):
        taken += window(queue, 100)
    tokens_of_low = 500 * taken[low]
    assert 100 * 100 / LOW_SHARE - 500 <= tokens_of_low <= 100 * 100 / LOW_SHARE + 500


arrivals = st.tuples(
    st.integers(0, 3), st.booleans(), st.integers(1, 6), st.integers(1, 30), st.booleans()
)


@given(st.lists(arrivals, max_size=25), st.integers(1, 60))
def test_nobody_starves_and_nobody_is_taken_twice(
    arriving: list[tuple[int, bool, int, int, bool]], tokens: int
) -> None:
    queue = ScoreQueue(10**9)
    # One more, who is there from the start, against callers who always send more.
    patient = job(3, tokens=5, caller="patient")
    queue.put(patient)
    seen: Counter[Job] = Counter()
    put, windows, leavers = [patient], 0, set[Job]()
    for caller, low, rows, length, leaves in arriving:
        new = job(rows, length, caller=str(caller), low=low)
        put.append(new)
        queue.put(new)
        if leaves:
            before = queue.tokens
            waiting = new.waiting_tokens
            queue.discard(new)
            leavers.add(new)
            assert queue.tokens == before - waiting
        else:
            seen += window(queue, tokens)
            windows += 1
        # At most four others stand before it each time, each with one row at least.
        if windows >= 5 * len(patient.rows):
            assert seen[patient] == len(patient.rows)
    queue.close()
    while (entries := queue.take(tokens)) is not None:
        seen += Counter(entry.job for entry in entries)
    assert queue.tokens == 0
    assert seen == {each: len(each.rows) for each in put if each not in leavers}


# --- over HTTP: who is a caller, what is urgent ---


async def post(app: Running, headers: dict[str, str] | None = None, **item: Any) -> httpx.Response:
    return await app.client.post("/score", json={"items": [item or GOOD]}, headers=headers)


def test_bulk_work_of_low_priority_comes_last() -> None:
    async def use(app: Running) -> None:
        app.scorer.max_batch_tokens = 8
        held = await app.hold()
        order: list[str] = []

        async def ask(name: str, text: str, headers: dict[str, str]) -> None:
            items = [{"context": c, "continuation": text[1:]} for c in text]
            answer = await app.client.post("/score", json={"items": items}, headers=headers)
            assert answer.status_code == 200
            order.append(name)

        low = asyncio.create_task(ask("low", "abcdefgh", {"X-Priority": "low"}))
        await app.waiting(8 * 7)
        normal = asyncio.create_task(ask("normal", "ABCDEFGH", {"X-Priority": " Normal "}))
        await app.waiting(2 * 8 * 7)
        app.scorer.gate.set()
        await asyncio.gather(held, low, normal)
        assert order == ["normal", "low"]

    with_app(use)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Priority", "high"),
        ("X-Priority", ""),
        *(("X-Request-Timeout", v) for v in ("0", "-1", "nan", "inf", "soon", "", "1e999", "1,5")),
    ],
)
def test_terms_that_are_none_name_their_header(header: str, value: str) -> None:
    async def use(app: Running) -> None:
        for path in ("/score", "/tokenize"):
            answer = await app.client.post(path, content=b"{}", headers={header: value})
            assert answer.status_code == 400
            error = error_of(answer)
            assert error.param == header and error.message.startswith(header)

    with_app(use)


@pytest.mark.parametrize("keys", [[], ["k", "l"]])
def test_a_caller_is_a_key_or_else_a_connection(keys: list[str]) -> None:
    async def use(app: Running) -> None:
        seen: list[Any] = []
        score = app.engine.score

        async def spy(rows: Any, **terms: Any) -> Any:
            if rows:
                seen.append(terms["caller"])
            return await score(rows, **terms)

        app.engine.score = spy  # type: ignore[method-assign]

        async def ask(port: int, key: str) -> Any:
            transport = httpx.ASGITransport(app.app, client=("a", port))
            headers = {"X-API-Key": key}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as http:
                assert (await http.post("/score", content=BODY)).status_code == 200
            return seen.pop()

        first, as_other, elsewhere = await ask(1, "k"), await ask(1, "l"), await ask(2, "k")
        if keys:
            assert first == elsewhere != as_other
        else:
            assert first == as_other != elsewhere

    with_app(use, api_key=keys)


# --- full ---


async def refused_by_its_head(served: Served, said: str) -> None:
    """Of the body nothing is ever sent."""
    wire = await served.connect()
    await wire.send("POST /score HTTP/1.1\nContent-Length: 100")
    full = await wire.answer()
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) >= 1
    error = error_of(full)
    assert error.code == "queue_full" and said in error.message


def test_too_many_requests_are_refused_before_their_body_is_read() -> None:
    async def use(served: Served) -> None:
        app = served.app
        held = await app.hold()
        second = asyncio.create_task(post(app))
        await app.waiting(1)
        await refused_by_its_head(served, "(--max-queued-requests) is 2")
        # Who needs no model is served as ever.
        assert (await app.client.post("/tokenize", json={"prompt": "a"})).status_code == 200
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert app.engine.room.requests == 1  # its place is free at once
        third = asyncio.create_task(post(app))
        await app.waiting(1)
        app.scorer.gate.set()
        assert [r.status_code for r in await asyncio.gather(held, third)] == [200, 200]
        assert app.engine.room.requests == 0

    with_server(use, max_queued_requests=2)


def test_a_full_queue_refuses_before_it_reads_or_tokenises() -> None:
    async def use(served: Served) -> None:
        held = await served.app.hold()
        waiting = asyncio.create_task(post(served.app, context="a", continuation="b" * 40))
        await served.app.waiting(40)
        await refused_by_its_head(served, "(--max-queued-tokens) is 40")
        served.app.scorer.gate.set()
        await asyncio.gather(held, waiting)

    with_server(use, max_queued_tokens=40)


def test_when_to_come_back_follows_from_what_was_measured() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        waiting = asyncio.create_task(post(app, context="a", continuation="b" * 900))
        await app.waiting(900)
        rate = 0.0
        app.engine.room._rate = lambda: rate

        async def told(**item: str) -> int:
            answer = await post(app, **item)
            assert answer.status_code == 429
            return int(answer.headers["retry-after"])

        rate = 10.0
        # 900 wait and 950 may: 50 fit now, and the other 50 do after 5 s.
        assert await told(context="a", continuation="c" * 100) == 5
        rate = 25.0
        assert await told(context="a", continuation="c" * 100) == 2
        rate = 0.001
        assert await told(context="a", continuation="c" * 100) == 120
        app.scorer.gate.set()
        await asyncio.gather(held, waiting)

    with_app(use, max_queued_tokens=950)


def test_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(app: Running) -> None:
        three = {"items": [{"context": "a", "continuations": ["b", "c", "d"]}]}
        assert (await app.client.post("/score", json=three)).status_code == 200
        refused = {
            "/score": {"items": [{"context": "a", "continuations": ["b", "c", "d", "e"]}]},
            "/v1/completions": {"prompt": ["ab"] * 4, "echo": True, "max_tokens": 0, "logprobs": 0},
            "/get_sequence_logprobs/": {"sequences": [[1, 2]] * 4, "prompt_lengths": [1] * 4} | TOP,
            "/rerank": {"query": "a", "documents": ["b"] * 4},
        }
        for path, body in refused.items():
            answer = await app.client.post(path, json=body)
            assert answer.status_code == 400, path
            error = error_of(answer)
            assert error.code == "too_many_rows", path
            assert "(--max-rows-per-request) is 3" in error.message
        # Of a large body not even the first is looked at.
        monkeypatch.setattr(body_module, "_LARGE", 0)
        answer = await app.client.post("/score", json={"items": ["not even an item"] * 4})
        error = error_of(answer)
        assert (error.code, error.param) == ("too_many_rows", "items")
        assert app.scorer.batches.pop().rows and not app.engine.waiting_tokens

    with_app(use, max_rows_per_request=3)


# --- deadlines ---


@pytest.mark.parametrize("flag", [None, 30.0])
def test_an_expired_request_leaves_the_queue_at_once(flag: float | None) -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        late = await post(app, {"X-Request-Timeout": "0.01"})
        assert late.status_code == 504
        error = error_of(late)
        assert error.code == "request_timeout" and error.type == "timeout_error"
        assert "0.01 s (X-Request-Timeout)" in error.message
        assert app.engine.waiting_tokens == 0 and app.engine.room.requests == 1
        app.scorer.gate.set()
        assert (await held).status_code == 200
        assert len(app.scorer.batches) == 1  # nothing of it has run
        assert (await post(app, {"X-Request-Timeout": "60"})).status_code == 200

    with_app(use, request_timeout=flag)


def test_the_operators_deadline_cannot_be_put_off() -> None:
    async def use(app: Running) -> None:
        held = asyncio.create_task(post(app, {"X-Request-Timeout": "1000"}))
        app.scorer.hold()
        late = await held
        assert late.status_code == 504
        assert "0.01 s (--request-timeout)" in error_of(late).message
        app.scorer.gate.set()

    with_app(use, request_timeout=0.01)


# --- compressed bodies ---


def deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


PACKED: list[tuple[str, bytes]] = [
    ("gzip", _gzip(BODY)),
    ("GZip ", _gzip(BODY[:9]) + _gzip(BODY[9:])),
    ("deflate", deflated(BODY, 15)),
    ("deflate", deflated(BODY, -15)),
    ("identity", BODY),
]


@pytest.mark.parametrize(("encoding", "packed"), PACKED)
def test_compressed_bodies(encoding: str, packed: bytes) -> None:
    async def use(app: Running) -> None:
        headers = {"Content-Encoding": encoding}
        answer = await app.client.post("/score", content=packed, headers=headers)
        assert answer.status_code == 200
        score = answer.json()["results"][0]["scores"][0]["loglikelihood"]
        assert score == loglikelihood(GOOD["continuation"])

    with_app(use)


@pytest.mark.parametrize(
    ("encoding", "packed", "said"),
    [
        ("gzip", BODY, "something else"),
        ("gzip", b"", "too early"),
        ("gzip", _gzip(BODY)[:-9], "too early"),
        ("gzip", _gzip(BODY) + b"x", "too early"),
        ("gzip", _gzip(BODY) + b"xy" * 9, "something else"),
        ("gzip", deflated(BODY, 15), "something else"),
        ("deflate", b"", "too early"),
        ("deflate", BODY, "something else"),
        ("deflate", deflated(BODY, 15) + b"x", "more follows"),
        ("deflate", deflated(BODY, -15)[:-3], "too early"),
    ],
)
def test_bodies_that_are_not_compressed_as_they_say(
    encoding: str, packed: bytes, said: str
) -> None:
    async def use(app: Running) -> None:
        headers = {"Content-Encoding": encoding}
        answer = await app.client.post("/score", content=packed, headers=headers)
        assert answer.status_code == 400
        error = error_of(answer)
        assert error.code == "invalid_encoding" and said in error.message

    with_app(use)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "identity, gzip", "*"])
def test_other_encodings_are_told_which_there_are(encoding: str) -> None:
    async def use(app: Running) -> None:
        headers = {"Content-Encoding": encoding}
        answer = await app.client.post("/score", content=BODY, headers=headers)
        assert answer.status_code == 415
        assert "gzip or deflate" in error_of(answer).message

    with_app(use)


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
def test_the_limit_is_of_what_is_unpacked(over: int, status: int) -> None:
    async def use(app: Running) -> None:
        headers = {"Content-Encoding": "gzip"}
        packed = _gzip(BODY.ljust(1000 + over))
        answer = await app.client.post("/score", content=packed, headers=headers)
        assert answer.status_code == status
        if over:
            error = error_of(answer)
            assert error.code == "body_too_large"
            assert "unpacked" in error.message and "--max-request-bytes" in error.message
        # Kilobytes that would be many megabytes.
        bomb = _gzip(b" " * 2**24)
        assert len(bomb) < 2**15
        bombs = await app.client.post("/score", content=bomb, headers=headers)
        assert bombs.status_code == 413

    with_app(use, max_request_bytes=1000)


# --- large bodies, read in pieces ---


def test_a_bomb_is_unpacked_to_the_limit_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._real = zlib_decompressobj(wbits)

        def decompress(self, data: Any, max_length: int) -> bytes:
            piece = self._real.decompress(data, max_length)
            pieces.append(len(piece))
            return piece

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    zlib_decompressobj = zlib.decompressobj
    monkeypatch.setattr(unpacked.zlib, "decompressobj", Counting)
    with pytest.raises(BodyTooLarge):
        unpacked.unpack(_gzip(bytes(2**26)), "gzip", 2**20)
    assert sum(pieces) == 2**20 + 1
    assert max(pieces) <= 2**18


names = st.sampled_from(["a", 'b"', "[", "\\", "}", "é"])
leaves = st.none() | st.booleans() | st.integers() | names | st.text(max_size=5)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=3)
)


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(names, st.lists(values, max_size=8) | values, max_size=4),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 40),
    st.none() | st.tuples(st.integers(0, 999), st.sampled_from([*b'[]{},:"\\ 1'])),
)
def test_pieces_are_read_as_the_whole_is(
    body: dict[str, Any], as_ascii: bool, block: int, piece: int, spoilt: tuple[int, int] | None
) -> None:
    sent = bytearray(json.dumps(body, ensure_ascii=as_ascii).encode())
    if spoilt is not None:
        sent[1 + spoilt[0] % (len(sent) - 1)] = spoilt[1]
    try:
        known: Any = from_json(sent)
    except ValueError:
        known = ValueError
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "_BLOCK", block)
        if known is ValueError:
            with pytest.raises(ValueError):
                large_json.read(sent, piece=piece)
        else:
            assert large_json.read(sent, piece=piece) == known


KINDS: dict[str, Any] = {
    "/score": wire.ScoreRequest,
    "/v1/completions": wire.CompletionRequest,
    "/generate": wire.GenerateRequest,
    "/get_sequence_logprobs/": wire.SequenceLogprobsRequest,
    "/v1/score": wire.LabelScoreRequest,
    "/generative_scoring": wire.GenerativeScoringRequest,
    "/rerank": wire.RerankRequest,
    "/tokenize": wire.TokenizeRequest,
    "/detokenize": wire.DetokenizeRequest,
}


def test_a_large_body_means_what_a_small_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [h for h in corpus() if h.method == "POST" and h.path in KINDS and h.body]
    goods = [Hostile("POST", path, json.dumps(good).encode()) for path, good in GOODS.items()]

    def outcome(one: Hostile) -> Any:
        try:
            return parse(KINDS[one.path], one.body)
        except InvalidRequest as error:
            # Where in the body JSON went wrong is said otherwise, and a list is not read at all.
            told = error.message if error.code != "invalid_json" else None
            return error.param, error.code, told

    small = [outcome(one) for one in [*sent, *goods]]
    monkeypatch.setattr(body_module, "_LARGE", -1)
    monkeypatch.setattr(large_json, "_PIECE", 1)
    for one, known in zip([*sent, *goods], small, strict=True):
        if not one.body.lstrip().startswith(b"["):
            assert outcome(one) == known, one


def test_what_is_long_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(data: Any) -> Any:
        read.append(len(data))
        return from_json(data)

    monkeypatch.setattr(large_json, "from_json", counted)
    for element in (b"{}", b'{"a":{"b":[1]}}', b"[[1],[2]]", b"12345", b'"a,b]"', b'"\\\\"'):
        read.clear()
        body = b'{"items":[' + b",".join([element] * 200_000) + b'],"model":"m"}'
        found: Any = large_json.read(body)
        assert found == {"items": [from_json(element)] * 200_000, "model": "m"}
        # A piece may be longer by what lies between two commas that are looked at.
        assert len(read) > 3 and max(read) < 2**17 + 2**12
    # A list is no request: the objects in it are not read.
    read.clear()
    assert large_json.read(b" [" + b"{}," * 200_000 + b"{}]") == [] and read == []


def test_the_loop_goes_on_while_a_large_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(app: Running) -> None:
        # Between any two pieces others may run: here they must, before the next is read.
        may_go_on = threading.Event()
        pieces = 0

        def gated(data: Any) -> Any:
            nonlocal pieces
            pieces += 1
            assert may_go_on.wait(60)
            may_go_on.clear()
            return from_json(data)

        monkeypatch.setattr(large_json, "from_json", gated)
        body = b'{"items":[' + b",".join([BODY[11:-2]] * 20_000) + b"]}"
        assert len(body) > body_module._LARGE
        large = asyncio.create_task(app.client.post("/score", content=body))
        answered = 0
        while not large.done():
            assert (await app.client.get("/health")).status_code == 200
            answered += 1
            may_go_on.set()
            await asyncio.sleep(0)  # such a request may be answered without a pause
        assert (await large).status_code == 200
        assert pieces > 3 and answered >= pieces

    with_app(use)


# --- connections ---


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)


async def full(served: Served, limit: int) -> list[Wire]:
    """As many connections as may be, each of which says nothing."""
    wires = [await served.connect() for _ in range(limit)]
    await until(lambda: len(served.server.server_state.connections) == limit)
    return wires


def check_refusal(answer: httpx.Response, limit: int) -> None:
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"
    assert int(answer.headers["retry-after"]) >= 1
    error = error_of(httpx.Response(503, headers=answer.headers, content=answer.content))
    assert error.code == "too_many_connections"
    assert str(limit) in error.message and "--max-connections" in error.message


def test_one_connection_too_many() -> None:
    async def use(served: Served) -> None:
        wires = await full(served, 3)
        # Health is answered, and nothing else; both for once.
        health = await served.connect()
        await health.send("GET /health HTTP/1.1")
        answer = await health.answer()
        assert answer.status_code == 200 and answer.headers["connection"] == "close"
        assert await health.reader.read() == b""
        for head, body in [
            ("GET /v1/models HTTP/1.1", b""),
            (f"POST /score HTTP/1.1\nContent-Length: {len(BODY)}", BODY),
            (f"POST /health/../score HTTP/1.1\nContent-Length: {len(BODY)}", BODY),
        ]:
            refused = await served.connect()
            await refused.send(head, body)
            check_refusal(await refused.answer(), 3)
            assert await refused.reader.read() == b""
        # Those that were there first are served, and one that goes makes place.
        await wires[0].send(f"POST /score HTTP/1.1\nContent-Length: {len(BODY)}", BODY)
        assert (await wires[0].answer()).status_code == 200
        await wires[1].close()
        await until(lambda: len(served.server.server_state.connections) == 2)
        await served.lives()

    with_server(use, max_connections=3)


def test_beyond_what_is_kept_for_health_nothing_needs_to_be_asked() -> None:
    async def use(served: Served) -> None:
        wires = await full(served, 2 + RESERVED)
        refused = await served.connect()
        check_refusal(await refused.answer(), 2)
        # It may go on sending: that does no harm, and resets nothing.
        refused.writer.write(BODY * 1000)
        await refused.writer.drain()
        assert await refused.reader.read() == b""
        assert len(served.server.server_state.connections) == 2 + RESERVED
        await wires[0].send(f"POST /score HTTP/1.1\nContent-Length: {len(BODY)}", BODY)
        assert (await wires[0].answer()).status_code == 200

    with_server(use, max_connections=2)


def test_refused_connections_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LINGERING", 1)

    async def use(served: Served) -> None:
        await full(served, 1 + RESERVED)
        first, second = await served.connect(), await served.connect()
        for each in (first, second):
            check_refusal(await each.answer(), 1)
            assert await each.reader.read() == b""
        await first.close()
        await second.close()
        # Both places are free again.
        third = await served.connect()
        check_refusal(await third.answer(), 1)

    with_server(use, max_connections=1)


# --- clients that take their time ---


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        b"G",
    ],
)
def test_what_does_not_come_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "_LINGER_SECONDS", SOON)

    async def use(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(sent)
        answer = await wire.answer()
        assert answer.status_code == 408
        assert answer.headers["connection"] == "close"
        error = error_of(answer)
        assert error.code == "body_timeout" and "(--body-timeout)" in error.message
        assert await wire.reader.read() == b""
        await until(lambda: not served.server.server_state.connections)
        assert served.app.engine.room.requests == 0

    with_server(use, body_timeout=SOON)


def test_the_rest_of_a_refused_body_is_not_waited_for() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(
            b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        assert (await wire.answer()).status_code == 404
        assert await wire.reader.read() == b""

    with_server(use, body_timeout=SOON)


def test_an_answer_that_nobody_takes_up_is_given_up() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        item = {"context": "a", "continuation": "b" * 900}
        body = json.dumps({"items": [item] * 20, "top_logprobs": 20}).encode()
        await wire.send(f"POST /score HTTP/1.1\nContent-Length: {len(body)}", body)
        await served.requests(1)
        await served.requests(0)
        await until(lambda: not served.server.server_state.connections)

    with_server(use, body_timeout=0.5)


def test_connections_with_nothing_to_say_end_like_idle_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", SOON)

    async def use(served: Served) -> None:
        wire = await served.connect()
        assert await wire.reader.read() == b""

    with_server(use)


def test_each_limit_is_a_setting_with_one_default() -> None:
    defaults = Settings()
    assert defaults.request_timeout is None
    for name in (
        "max_queued_tokens",
        "max_queued_requests",
        "max_rows_per_request",
        "max_request_bytes",
        "max_connections",
        "body_timeout",
        "request_timeout",
    ):
        for bad in (0, -1, float("nan")):
            with pytest.raises(ValueError):
                Settings(**{name: bad})
