"""Bad input, each kind once: a clear 4xx that names the field, and the server lives.

The last of these go through a real socket: what a client does with its connection is input too.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from fakes import (
    MAX_MODEL_LEN,
    NAME,
    VOCAB_SIZE,
    Running,
    error_of,
    with_app,
)
from sockets import GOOD, Served, with_server

from mlxscore_server.envelope import LINGER_BYTES


def one(**item: Any) -> dict[str, Any]:
    return {"items": [item]}


def text(**fields: Any) -> dict[str, Any]:
    return {"items": [GOOD], **fields}


BAD_FIELDS: list[tuple[Any, str | None, str]] = [
    # (body, param, what the message says)
    ([], None, "object"),
    (None, None, "object"),
    ("items", None, "object"),
    ({}, "items", "items"),
    ({"items": []}, "items", "must not be empty"),
    ({"items": None}, "items", "items"),
    ({"items": GOOD}, "items", "array"),
    ({"items": ["a"]}, "items[0]", "object"),
    ({"items": [GOOD, [GOOD]]}, "items[1]", "object"),
    (one(context="a"), "items[0]", "neither"),
    (one(continuation="a"), "items[0].context", "context"),
    (one(context="a", continuation="b", continuations=["c"]), "items[0]", "both"),
    (one(context="a", continuation=None), "items[0]", "neither"),
    (one(context="a", continuations=None), "items[0]", "neither"),
    (one(context="a", continuations=[]), "items[0].continuations", "must not be empty"),
    (one(context="a", continuations="b"), "items[0].continuations", "array"),
    (one(context="a", continuation=""), "items[0].continuation", "empty"),
    (one(context="a", continuation=[]), "items[0].continuation", "empty"),
    (one(context="a", continuations=["b", ""]), "items[0].continuations[1]", "empty"),
    (one(context="a", continuations=["b", []]), "items[0].continuations[1]", "empty"),
    (one(context="a", continuations=["b", None]), "items[0].continuations[1]", "token ids"),
    (one(context="a", continuations=["b", 7]), "items[0].continuations[1]", "token ids"),
    (one(context=None, continuation="b"), "items[0].context", "token ids"),
    (one(context={"text": "a"}, continuation="b"), "items[0].context", "token ids"),
    (one(context=["a", 1], continuation="b"), "items[0].context[0]", "integer"),
    (one(context=[[1], "a"], continuation="b"), "items[0].context[0]", "integer"),
    (one(context=[1], continuations=[[1], [[2]]]), "items[0].continuations[1][0]", "integer"),
    (one(**GOOD, id=7), "items[0].id", "string"),
    (one(context="a", contination="b"), "items[0].contination", "continuation"),
    (one(**GOOD, text="c"), "items[0]", "exactly one"),
    (text(retrun_tokens=True), "retrun_tokens", "return_tokens"),
    (text(prompt="a"), "prompt", "known"),
    (text(return_tokens="yes"), "return_tokens", "boolean"),
    (text(return_tokens=1), "return_tokens", "boolean"),
    (text(add_special_tokens="no"), "add_special_tokens", "boolean"),
    (text(top_logprobs=-1), "top_logprobs", "0"),
    (text(top_logprobs=21), "top_logprobs", "--max-logprobs"),
    (text(top_logprobs=10**9), "top_logprobs", "20"),
    (text(top_logprobs="3"), "top_logprobs", "integer"),
    (text(top_logprobs=True), "top_logprobs", "integer"),
    (text(top_logprobs=1.5), "top_logprobs", "integer"),
    (text(boundary="soft"), "boundary", "separate"),
    (text(boundary=None), "boundary", "separate"),
    (text(truncation="right"), "truncation", "left"),
    ({"items": [GOOD, GOOD, one(context="a")["items"][0], GOOD]}, "items[2]", "exactly one"),
]
BAD_IDS: list[tuple[Any, str]] = [
    (True, "integer"),
    (1.0, "integer"),
    ("1", "integer"),
    (None, "integer"),
    (-1, "0"),
    (VOCAB_SIZE, str(VOCAB_SIZE)),
    (10**7, str(VOCAB_SIZE)),
    (2**31, "2147483647"),
    (2**63, "2147483647"),
    (10**30, "2147483647"),
]
NOT_JSON = [
    b"",
    b" ",
    b"items",
    b'{"items": [',
    b"{'items': []}",
    b'{"items": [{"context": "a", "continuation": "b"}]} {}',
    b"[" * 100_000,
    b'{"items": [{"context": "\xff", "continuation": "b"}]}',
    b'{"items": [{"context": "\\ud800", "continuation": "b"}]}',  # a lone surrogate
    b'{"items": [{"context": "a", "continuation": "b\\udc00\\ud800"}]}',
    '{"items": []}'.encode("utf-16"),
]


@pytest.mark.parametrize(("body", "param", "said"), BAD_FIELDS)
def test_a_bad_field_is_named(body: Any, param: str | None, said: str) -> None:
    async def use(app: Running) -> None:
        await refused(app, json.dumps(body).encode(), param, said)

    with_app(use)


@pytest.mark.parametrize(("bad", "said"), BAD_IDS)
@pytest.mark.parametrize("place", ["context", "continuation", "continuations"])
def test_a_bad_token_id_is_named(bad: Any, said: str, place: str) -> None:
    item: dict[str, Any] = {"context": [1, 2], "continuation": [3, 4]}
    param = f"items[1].{place}[2]"
    if place == "continuations":
        del item["continuation"]
        item["continuations"] = [[5], [6, 7, bad]]
        param = "items[1].continuations[1][2]"
    else:
        item[place] = [*item[place], bad]

    async def use(app: Running) -> None:
        await refused(app, json.dumps({"items": [GOOD, item]}).encode(), param, said)

    with_app(use)


@pytest.mark.parametrize("body", NOT_JSON)
def test_what_is_not_json(body: bytes) -> None:
    async def use(app: Running) -> None:
        error = await refused(app, body, None, "JSON")
        assert error.code == "invalid_json"

    with_app(use)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("template", "param"),
    [
        ('{"items": [{"context": [%s], "continuation": "b"}]}', "items[0].context[0]"),
        ('{"items": [{"context": "a", "continuation": "b", "id": %s}]}', "items[0].id"),
        (
            '{"items": [{"context": "a", "continuation": "b"}], "top_logprobs": %s}',
            "top_logprobs",
        ),
        ("%s", None),
    ],
)
def test_numbers_that_are_none(number: str, template: str, param: str | None) -> None:
    async def use(app: Running) -> None:
        await refused(app, (template % number).encode(), param, "")

    with_app(use)


async def refused(app: Running, body: bytes, param: str | None, said: str) -> Any:
    """A 400 that names the field; the one who sends something good beside it is served."""
    bad, good = await asyncio.gather(
        app.client.post("/score", content=body, headers={"content-type": "application/json"}),
        app.score(items=[GOOD]),
    )
    assert bad.status_code == 400, bad.text
    error = error_of(bad)
    assert error.type == "invalid_request_error"
    assert error.param == param
    assert said in error.message
    assert (param or "") in error.message or "unknown field" in error.message
    assert len(error.message) < 1000
    assert good.status_code == 200
    return error


def test_several_errors_are_counted_and_the_first_is_told() -> None:
    async def use(app: Running) -> None:
        body = text(return_tokens=3, boundary="soft", truncation="right")
        error = await refused(app, json.dumps(body).encode(), "return_tokens", "2 more")
        assert "boolean" in error.message

    with_app(use)


def test_a_long_value_is_not_thrown_back() -> None:
    async def use(app: Running) -> None:
        for body in (text(**{"x" * 10**6: 1}), text(boundary="x" * 10**6), text(model="x" * 10**6)):
            response = await app.client.post("/score", json=body)
            assert response.status_code in (400, 404)
            assert len(response.content) < 2000

    with_app(use)


HUGE = 10**400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", text(top_logprobs=HUGE), "top_logprobs"),
        ("/score", one(text="abc") | {"window": HUGE}, "window"),
        ("/score", one(text="abc") | {"stride": HUGE}, "stride"),
        ("/v1/completions", {"prompt": "a", "max_tokens": HUGE}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "n": HUGE}, "n"),
        ("/v1/completions", {"prompt": "a", "best_of": -HUGE}, "best_of"),
        ("/v1/completions", {"prompt": "a", "logprobs": HUGE}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": HUGE}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "a", "bad_words": [[HUGE]] * 99}, "bad_words"),
        ("/v1/completions", {"prompt": [HUGE]}, "prompt[0]"),
        (
            "/generate",
            {"text": "a", "sampling_params": {"max_new_tokens": HUGE}},
            "sampling_params.max_new_tokens",
        ),
        (
            "/generate",
            {"text": "a", "sampling_params": {"max_new_tokens": 1, "n": HUGE}},
            "sampling_params.n",
        ),
        (
            "/generate",
            {"text": "a", "sampling_params": {"max_new_tokens": 1}, "logprob_start_len": HUGE},
            "logprob_start_len",
        ),
        (
            "/generate",
            {"text": "a", "sampling_params": {"max_new_tokens": 1}, "top_logprobs_num": HUGE},
            "top_logprobs_num",
        ),
        (
            "/get_sequence_logprobs/",
            {"sequences": [[1]], "prompt_lengths": [HUGE], "top_logprobs": 1},
            "prompt_lengths[0]",
        ),
        (
            "/get_sequence_logprobs/",
            {"sequences": [[1]], "prompt_lengths": [1], "top_logprobs": HUGE},
            "top_logprobs",
        ),
        (
            "/v1/score",
            {"query": "a", "items": ["b"], "label_token_ids": [HUGE]},
            "label_token_ids[0]",
        ),
        (
            "/rerank",
            {"query": "a", "documents": ["b"], "max_tokens_per_doc": HUGE},
            "max_tokens_per_doc",
        ),
        ("/detokenize", {"tokens": [HUGE]}, "tokens[0]"),
    ],
)
def test_a_huge_number_is_refused_in_a_few_words(path: str, body: Any, param: str) -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(path, json=body)
        assert response.status_code == 400
        error = error_of(response)
        assert error.param == param
        assert param in error.message
        assert len(error.message) < 300

    with_app(use)


@pytest.mark.parametrize("path", ["items", "context", "continuations"])
def test_a_flood_of_errors(path: str) -> None:
    """Only the first of very many errors is told, and the answer stays small."""
    if path == "items":
        body: Any = {"items": [{}] * 250_000}  # as many as there may be
    elif path == "context":
        body = one(context=[True] * 1_000_000, continuation="b")
    else:
        body = one(context="a", continuations=[None] * 1_000_000)

    async def use(app: Running) -> None:
        response = await app.client.post("/score", json=body)
        assert response.status_code == 400
        param = {"items": "items[0]", "context": "items[0].context[0]"}.get(
            path, "items[0].continuations[0]"
        )
        assert error_of(response).param == param

    with_app(use)


@pytest.mark.parametrize("extra", [1, 10 * MAX_MODEL_LEN])
@pytest.mark.parametrize("as_ids", [False, True])
def test_rows_that_are_too_long(extra: int, as_ids: bool) -> None:
    def of(length: int) -> Any:
        return [65] * length if as_ids else "A" * length

    async def use(app: Running) -> None:
        fits = {"context": of(MAX_MODEL_LEN - 2), "continuation": of(2)}
        assert (await app.score(items=[fits])).status_code == 200
        long = {"context": of(MAX_MODEL_LEN - 2 + extra), "continuation": of(2)}
        body = json.dumps({"items": [fits, long, fits]}).encode()
        error = await refused(app, body, "items[1].continuation", str(MAX_MODEL_LEN))
        assert str(MAX_MODEL_LEN + extra) in error.message
        # A continuation that does not fit cannot be cut, whatever is asked for.
        hopeless = {"context": of(1), "continuations": [of(1), of(MAX_MODEL_LEN - 1 + extra)]}
        body = json.dumps({"items": [hopeless], "truncation": "left"}).encode()
        await refused(app, body, "items[0].continuations[1]", str(MAX_MODEL_LEN))

    with_app(use)


def test_another_model_is_a_404() -> None:
    async def use(app: Running) -> None:
        response = await app.score(items=[GOOD], model="gpt-4")
        assert response.status_code == 404
        error = error_of(response)
        assert (error.type, error.code, error.param) == (
            "not_found_error",
            "model_not_found",
            "model",
        )
        assert "gpt-4" in error.message
        assert NAME in error.message

    with_app(use)


def test_a_hundred_thousand_items() -> None:
    async def use(app: Running) -> None:
        response = await app.score(items=[GOOD] * 100_000)
        assert response.status_code == 200
        results = response.json()["results"]
        assert [result["index"] for result in results] == list(range(100_000))
        assert response.json()["usage"]["computed_tokens"] < 100_000

    with_app(use)


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/score", 405, "method_not_allowed", "POST"),
        ("DELETE", "/score", 405, "method_not_allowed", "POST"),
        ("POST", "/health", 405, "method_not_allowed", "GET"),
        ("POST", "/v1/models", 405, "method_not_allowed", "GET"),
        ("POST", "/scores", 404, None, None),
        ("POST", "/score/", 404, None, None),
        ("GET", "/nowhere", 404, None, None),
        ("GET", "/%00%ff", 404, None, None),
    ],
)
def test_wrong_methods_and_paths(
    method: str, path: str, status: int, code: str | None, allow: str | None
) -> None:
    async def use(app: Running) -> None:
        response = await app.client.request(method, path)
        assert response.status_code == status
        assert response.headers.get("allow") == allow
        error = error_of(response)
        assert error.param is None
        assert code in (None, error.code)

    with_app(use)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("content-type", "text/plain"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-type", "application/jsonp"),
        ("content-type", ""),
        ("content-encoding", "br"),
    ],
)
def test_wrong_content_types(header: str, value: str) -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(
            "/score", content=json.dumps({"items": [GOOD]}), headers={header: value}
        )
        assert response.status_code == 415
        assert error_of(response).code == "unsupported_media_type"

    with_app(use)


# --- through a real socket ---


def quiet(caplog: pytest.LogCaptureFixture) -> bool:
    return not [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]


def test_a_client_that_leaves_in_the_middle_of_its_body(caplog: pytest.LogCaptureFixture) -> None:
    async def use(served: Served) -> None:
        for length in ("Content-Length: 1000", "Transfer-Encoding: chunked"):
            leaver = await served.connect()
            await leaver.send(f"POST /score HTTP/1.1\n{length}", b'5\r\n{"ite')
            await served.requests(1)
            await leaver.close()
            await served.requests(0)
        await served.lives()

    with_server(use)
    assert quiet(caplog)


def test_a_client_that_leaves_while_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def use(served: Served) -> None:
        held = await served.app.hold()
        leaver, stayer = await served.connect(), await served.connect()
        for wire, mark in ((leaver, "left"), (stayer, "here")):
            body = json.dumps({"items": [{"context": mark, "continuation": "bc"}]}).encode()
            await wire.send(f"POST /score HTTP/1.1\nContent-Length: {len(body)}", body)
        await served.app.waiting(2 * 5)
        await leaver.close()
        await served.app.waiting(5)
        await served.requests(1)
        served.app.scorer.gate.set()
        assert (await stayer.answer()).status_code == 200
        await held
        ran = {
            bytes(row.ids[:4].tolist()) for batch in served.app.scorer.batches for row in batch.rows
        }
        assert b"here" in ran
        assert b"left" not in ran

    with_server(use)
    assert quiet(caplog)


LIMIT = 100_000


def test_a_body_that_is_too_large_with_content_length(caplog: pytest.LogCaptureFixture) -> None:
    async def use(served: Served) -> None:
        # Refused before any of it is sent ...
        sender = await served.connect()
        await sender.send(f"POST /score HTTP/1.1\nContent-Length: {LIMIT + 1}")
        response = await sender.answer()
        assert response.status_code == 413
        assert str(LIMIT) in error_of(response).message
        assert str(LIMIT + 1) in error_of(response).message
        assert "--max-request-bytes" in error_of(response).message
        assert response.headers["connection"] == "close"
        # ... and the answer reaches one who sends on: the connection is closed, not reset.
        sender.writer.write(b" " * (LIMIT + 1))
        assert await sender.reader.read() == b""
        await served.lives()

    with_server(use, max_request_bytes=LIMIT)
    assert quiet(caplog)


def test_a_chunked_body_that_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    async def use(served: Served) -> None:
        sender = await served.connect()
        await sender.send("POST /score HTTP/1.1\nTransfer-Encoding: chunked")
        answer = asyncio.create_task(sender.answer())
        chunk = b"2710\r\n" + b" " * 10_000 + b"\r\n"
        while not answer.done():  # without an end, until the server says stop
            sender.writer.write(chunk)
            await sender.writer.drain()
        response = await answer
        assert response.status_code == 413
        assert str(LIMIT) in error_of(response).message
        sender.writer.write(b"0\r\n\r\n")
        assert await sender.reader.read() == b""
        await served.lives()

    with_server(use, max_request_bytes=LIMIT)
    assert quiet(caplog)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /nowhere", 404),
        ("PUT /score", 405),
        ("POST /score", 415),
        ("GET /health", 200),
    ],
)
def test_a_body_without_an_end_is_not_read_for_ever(request_line: str, status: int) -> None:
    async def use(served: Served) -> None:
        sender = await served.connect()
        # Its own head: the content type is part of what is wrong here.
        head = f"{request_line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        sender.writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        response = await sender.answer()
        assert response.status_code == status
        assert response.headers["connection"] == "close"
        chunk = b"186a0\r\n" + b" " * 100_000 + b"\r\n"
        with pytest.raises(ConnectionError):  # the server has stopped listening
            for _ in range(2 * LINGER_BYTES // len(chunk)):
                sender.writer.write(chunk)
                await sender.writer.drain()
        await served.lives()

    with_server(use)


def test_a_refused_body_that_ends_costs_no_connection() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        for _ in range(3):
            await wire.send("POST /nowhere HTTP/1.1\nContent-Length: 100000", b" " * 100_000)
            response = await wire.answer()
            assert response.status_code == 404
            assert "connection" not in response.headers

    with_server(use)


def test_a_real_client_reads_its_413_after_sending_it_all() -> None:
    async def use(served: Served) -> None:
        async def chunks() -> AsyncGenerator[bytes]:
            for _ in range(2000):
                yield b" " * 10_000

        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}") as client:
            headers = {"content-type": "application/json"}
            for content in (b" " * 20_000_000, chunks()):
                response = await client.post("/score", content=content, headers=headers)
                assert response.status_code == 413
                assert error_of(response).code == "body_too_large"
            assert (await client.get("/health")).status_code == 200

    with_server(use, max_request_bytes=LIMIT)


def test_a_body_of_exactly_the_limit() -> None:
    body = json.dumps({"items": [GOOD]}).encode()
    body += b" " * (LIMIT - len(body))

    async def chunks() -> AsyncGenerator[bytes]:
        yield body[:10]
        yield body[10:]

    async def use(app: Running) -> None:
        headers = {"content-type": "application/json"}
        for content in (body, chunks()):
            response = await app.client.post("/score", content=content, headers=headers)
            assert response.status_code == 200
        response = await app.client.post("/score", content=body + b" ", headers=headers)
        assert response.status_code == 413

    with_app(use, max_request_bytes=LIMIT)


def test_expect_continue_is_not_asked_to_send_what_is_refused() -> None:
    async def use(served: Served) -> None:
        sender = await served.connect()
        head = f"POST /score HTTP/1.1\nExpect: 100-continue\nContent-Length: {LIMIT + 1}"
        await sender.send(head)
        assert (await sender.answer()).status_code == 413
        await sender.close()
        await served.requests(0)
        await served.lives()

    with_server(use, max_request_bytes=LIMIT)


def test_a_connection_lives_on_after_an_error() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        for body, status in ((b"[]", 400), (b"{", 400), (json.dumps(text()).encode(), 200)):
            await wire.send(f"POST /score HTTP/1.1\nContent-Length: {len(body)}", body)
            assert (await wire.answer()).status_code == status
        await wire.send("GET /nowhere HTTP/1.1")
        assert (await wire.answer()).status_code == 404

    with_server(use)


NO_HTTP = [
    (b"hello\r\n\r\n", "request line"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "request line"),  # TLS
    (b"GET /health HTTP/1.1\r\n\r\n", "Host"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", "Host"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", "header"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 2\r\n\r\n", "Content-Length"),
    (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        "Transfer-Encoding",
    ),
    (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
        "long",
    ),  # and no end of it
]


@pytest.mark.parametrize(("sent", "said"), NO_HTTP)
def test_what_is_no_http_is_refused_like_all_else(sent: bytes, said: str) -> None:
    async def use(served: Served) -> None:
        sender = await served.connect()
        sender.writer.write(sent)
        response = await sender.answer()
        error = error_of(response)
        assert (response.status_code, error.type, error.code) in [
            (400, "invalid_request_error", "invalid_http"),
            (431, "invalid_request_error", "headers_too_large"),
        ]
        assert (said == "long") == (response.status_code == 431)
        assert said in error.message
        assert response.headers["connection"] == "close"
        assert await sender.reader.read() == b""
        await served.lives()

    with_server(use)


def test_a_body_that_goes_wrong_after_its_answer_has_begun(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(served: Served) -> None:
        sender = await served.connect()
        await sender.send("POST /nowhere HTTP/1.1\nTransfer-Encoding: chunked")
        assert (await sender.answer()).status_code == 404
        sender.writer.write(b"no size\r\n")
        assert await sender.reader.read() == b""
        await served.lives()

    with_server(use)
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]


def test_idle_connections_outlive_their_clients_patience() -> None:
    """Else a request may be sent into a connection that the server is just closing."""

    async def use(served: Served) -> None:
        for patience in (httpx.Limits().keepalive_expiry, 15):  # httpx; aiohttp
            assert patience is not None
            assert served.server.config.timeout_keep_alive > 2 * patience

    with_server(use)


def test_idle_connections_do_not_hold_the_server_up() -> None:
    async def use(served: Served) -> None:
        idle, half = await served.connect(), await served.connect()
        await idle.send("GET /health HTTP/1.1")
        assert (await idle.answer()).status_code == 200
        half.writer.write(b"GET /heal")
        while len(served.server.server_state.connections) < 2:
            await asyncio.sleep(0)
        served.server.leave()
        assert await idle.reader.read() == b""
        with suppress(ConnectionError):
            assert await half.reader.read() == b""

    with_server(use)
