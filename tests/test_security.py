"""Who is let in, what is refused at the door, and what answers and logs never hold."""

import asyncio
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import Running, byte_tokenizer, error_of, running, with_app
from openai import AuthenticationError as OpenAIAuthenticationError
from openai import OpenAI
from running import with_engine
from sockets import GOOD, Served, with_server
from test_cli import command, fake_server
from tiny_folders import save_model

from mlxscore_client import AsyncClient, AuthenticationError, Client
from mlxscore_server.access import OPEN_PATHS
from mlxscore_server.checkpoint import commit_of, find_checkpoint
from mlxscore_server.engine import Engine
from mlxscore_server.errors import StartupError
from mlxscore_server.hosts import AllowedHosts, check_origins
from mlxscore_server.keys import Keys
from mlxscore_server.model import load
from mlxscore_server.settings import Settings

KEY, OTHER = "correct-horse-battery", "staple+/=0123456789"
BODY = {"items": [GOOD]}


def line(name: str, key: str) -> str:
    return f"{name}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"


# --- keys ---


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"bearer  {OTHER}"},
        {"X-API-Key": KEY},
        # A proxy's own, or a client's that must send something.
        {"Authorization": "Basic dTpw", "X-API-Key": KEY},
        {"Authorization": "Bearer none", "X-API-Key": KEY},
    ],
)
def test_a_key_lets_in(headers: dict[str, str]) -> None:
    async def use(app: Running) -> None:
        response = await app.client.post("/score", json=BODY, headers=headers)
        assert response.status_code == 200

    with_app(use, api_key=[KEY, OTHER])


WRONG = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": KEY},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY},{OTHER}"},
    {"Authorization": f"Bearer {KEY.upper()}"},
    {"Authorization": f"Digest {KEY}"},
    {"Authorization": "Bearer \xe9"},
    {"X-API-Key": "wrong"},
    {"X-API-Key": hashlib.sha256(KEY.encode()).hexdigest()},
]


@pytest.mark.parametrize("headers", WRONG)
def test_without_a_key_nothing_but_health_is_answered(headers: dict[str, str]) -> None:
    async def use(app: Running) -> None:
        sent = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        described: dict[str, Any] = app.app.openapi()["paths"]
        calls = [(method, path) for path in described for method in described[path]]
        assert len(calls) > 10
        calls += [
            ("get", "/docs"),
            ("get", "/openapi.json"),
            ("get", "/nowhere"),
            ("put", "/score"),
        ]
        for method, path in calls:
            response = await app.client.request(method, path, headers=sent)
            if path in OPEN_PATHS:
                assert response.status_code == 200
                continue
            assert response.status_code == 401, path
            error = error_of(response)
            assert (error.type, error.code) == ("authentication_error", "invalid_api_key")
            assert "Bearer" in response.headers["www-authenticate"]
            assert KEY not in response.text

    with_app(use, api_key=[KEY, OTHER])


def test_a_401_comes_before_the_body() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        await wire.send("POST /score HTTP/1.1\nContent-Length: 1000")  # and none of it
        assert (await wire.answer()).status_code == 401

    with_server(use, api_key=[KEY])


def test_the_openapi_document_says_that_a_key_is_needed() -> None:
    async def use(app: Running) -> None:
        document = app.app.openapi()
        assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                assert bool(operation["security"]) == (path not in OPEN_PATHS)
                assert ("401" in operation["responses"]) == (path not in OPEN_PATHS)

    with_app(use, api_key=[KEY])

    async def without(app: Running) -> None:
        assert "securitySchemes" not in app.app.openapi()["components"]

    with_app(without)


def test_the_documentation_opens_in_a_browser() -> None:
    """It can send no header of its own: it asks for a password where it is told to."""

    async def use(app: Running) -> None:
        for path in ("/docs", "/openapi.json"):
            challenge = (await app.client.get(path)).headers["www-authenticate"]
            assert challenge.startswith("Basic realm=")
            assert (await app.client.get(path, auth=("", KEY))).status_code == 200
            assert (await app.client.get(path, auth=(KEY, ""))).status_code == 401
            broken = {"Authorization": "Basic !"}
            assert (await app.client.get(path, headers=broken)).status_code == 401
        # Nowhere else: a browser would send it along with what other pages make it ask for.
        assert (await app.client.get("/v1/models", auth=("", KEY))).status_code == 401

    with_app(use, api_key=[KEY])


def test_clients_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLXSCORE_API_KEY", raising=False)
    with fake_server("ok", "--api-key", KEY, "--log-level", "debug") as server:
        url = server.url()
        server.until("ready")
        with Client(url, api_key=KEY) as client:
            assert client.score("a", ["b"])
            shown = f"{client!r} {vars(client)!r} {vars(client._http)!r}"
            assert KEY not in shown
        with Client(url, api_key=OTHER) as client, pytest.raises(AuthenticationError) as caught:
            client.score("a", ["b"])
        assert caught.value.code == "invalid_api_key"
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as openai:
            done = openai.completions.create(model="bytes", prompt="ab", echo=True, max_tokens=0)
            assert done.choices[0].text == "ab"
        with (
            OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai,
            pytest.raises(OpenAIAuthenticationError),
        ):
            openai.models.list()
        monkeypatch.setenv("MLXSCORE_API_KEY", KEY)
        with Client(url) as client:
            assert client.score("a", ["b"])
        server.process.terminate()
        assert server.end() == 0
        assert KEY not in "".join(server.lines)
        assert OTHER not in "".join(server.lines)


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# Who may\n\n  {line('alice', KEY)}  \r\n{line('bob', OTHER).upper()}\n")
    file.write_text(file.read_text().replace("BOB:SHA256", "bob:sha256"))
    keys = Keys.read([KEY, "third"], file)
    assert keys.name_of([KEY]) == "alice"
    assert keys.name_of(["wrong", OTHER, KEY]) == "bob"
    assert keys.name_of(["wrong"]) is None
    third = keys.name_of(["third"])
    # The same after a restart, and nothing of the key or of its digest in a file.
    assert third == Keys.read(["third"], None).name_of(["third"])
    assert third is not None
    assert third.removeprefix("key-") not in line("", "third")
    assert "third" not in third


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys.read(["first", "second", "third"], None)
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr("hmac.compare_digest", compare)
    for presented in ("first", "third", "none of them"):
        compared.clear()
        keys.name_of([presented])
        assert len(set(compared)) == 3
        assert all(len(one) == 32 for one in compared)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no key"),
        ("# none\n\n", "no key"),
        (f"\n{KEY}\n", "line 2"),
        (f"alice:sha256:{KEY}\n", "line 1"),
        (f"alice:md5:{'0' * 64}", "line 1"),
        (f"al ice:sha256:{'0' * 64}", "line 1"),
        (f"alice:sha256:{'0' * 63}", "line 1"),
        (
            f"{line('alice', KEY)}\n{line('alice', OTHER)}",
            "line 2: an earlier line has the same name",
        ),
        (f"{line('alice', KEY)}\n{line('bob', KEY)}", "line 2: an earlier line has the same key"),
        (f"{line('alice', KEY)} # mine", "line 1"),
        ("\x00\xff", "line 1"),
    ],
)
def test_a_wrong_key_file_ends_the_start_and_is_not_quoted(
    tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(StartupError, match=said) as caught:
        Keys.read([], file)
    message = str(caught.value)
    assert "--api-key-file" in message
    assert "\n" not in message
    for secret in (KEY, "0" * 20, line("", KEY).rpartition(":")[2]):
        assert secret not in message


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--api-key-file .*: No such file"):
        Keys.read([], tmp_path / "none")
    with pytest.raises(StartupError, match=r"--api-key-file .*directory"):
        Keys.read([], tmp_path)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "a\x00b"])
def test_a_key_that_cannot_be_sent_ends_the_start(key: str) -> None:
    with pytest.raises(StartupError, match="--api-key") as caught:
        Keys.read([KEY, key], None)
    assert KEY not in str(caught.value)
    if key:
        assert key not in str(caught.value)


def test_a_key_that_is_none_ends_the_start_and_is_not_shown() -> None:
    for flags, env in [
        (["--api-key", f"{KEY} {KEY}"], {}),
        (["--api-key", KEY, "--port", "none"], {}),
        (["--port", "none"], {"MLXSCORE_API_KEY": KEY}),
        # Meant to be closed, and must not be open because a variable was not set.
        (["--api-key", ""], {}),
        (["--api-key="], {}),
        (["--api-key", KEY, "--api-key", ""], {}),
        (["--api-key-file", ""], {}),
        ([], {"MLXSCORE_API_KEY": ""}),
        ([], {"MLXSCORE_API_KEY_FILE": ""}),
        ([], {"MLXSCORE_API_KEY": f"{KEY},"}),
    ]:
        done = command(*flags, env=env)
        assert done.returncode == 2, done.stderr
        assert "error: " in done.stderr
        assert KEY not in done.stdout + done.stderr


# --- tenants ---


def test_each_key_is_a_tenant_of_its_own_and_keeps_its_own_prefixes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{line('alice', KEY)}\n{line('bob', OTHER)}\n")

    async def salts(**settings: Any) -> list[bytes]:
        async with running(api_key_file=file, **settings) as app:
            for key in (KEY, OTHER, KEY):
                for more in ({}, {"cache_salt": "s"}):
                    response = await app.client.post(
                        "/score", json=BODY | more, headers={"X-API-Key": key}
                    )
                    assert response.status_code == 200
            return [row.salt for batch in app.scorer.batches for row in batch.rows]

    async def main() -> None:
        apart = await salts()
        assert len(set(apart)) == 4
        assert apart[:2] == apart[4:]
        shared = await salts(share_prefix_cache_across_keys=True)
        assert shared == [b"", b"s"] * 3

    asyncio.run(main())


def test_a_salt_cannot_pass_for_another_keys() -> None:
    """Were the two merely joined, bob's salt could name what alice keeps."""

    async def use(app: Running) -> None:
        names = [app.app.state.keys.name_of([key]) for key in (KEY, OTHER)]
        for key, salt in ((KEY, None), (OTHER, names[0]), (OTHER, f"{names[0]}\0"), (KEY, "\0")):
            body = BODY | ({} if salt is None else {"cache_salt": salt})
            response = await app.client.post("/score", json=body, headers={"X-API-Key": key})
            assert response.status_code == 200
        found = [row.salt for batch in app.scorer.batches for row in batch.rows]
        assert len(set(found)) == 4

    with_app(use, api_key=[KEY, OTHER])


def test_without_keys_a_key_that_is_sent_is_nobodys() -> None:
    async def use(app: Running) -> None:
        response = await app.client.post("/score", json=BODY, headers={"X-API-Key": KEY})
        assert response.status_code == 200
        assert app.scorer.batches[0].rows[0].salt == b""

    with_app(use)


# --- hosts, pages of other sites ---

LOOPBACK = ["localhost", "LOCALHOST:1", "localhost.:8000", "127.0.0.1", "127.0.0.1:80", "127.8.0.1"]
LOOPBACK += ["[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]"]
FOREIGN = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.5", "[::2]"]
FOREIGN += [
    "",
    "localhost:x",
    "localhost/",
    "a@localhost",
    "localhost@evil",
    "::1",
    "[::1",
    "0.0.0.0",
]


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_only_its_names_are_answered_to(bound_to: str) -> None:
    hosts = AllowedHosts(None, bound_to)
    assert all(map(hosts.allow, LOOPBACK))
    assert not any(map(hosts.allow, [*FOREIGN, None]))


def test_elsewhere_any_name_unless_some_are_given() -> None:
    assert all(map(AllowedHosts(None, "0.0.0.0").allow, [*LOOPBACK, *FOREIGN, None]))
    given = AllowedHosts(["Score.example.com", "*.internal.example", "10.0.0.5", "::2"], "0.0.0.0")
    good = ["score.example.com:443", "a.internal.example", "a.b.internal.example.", "10.0.0.5:1"]
    assert all(map(given.allow, [*good, "[::2]:1", *LOOPBACK]))
    bad = ["internal.example", "xinternal.example", "score.example.com.evil", "10.0.0.6", None]
    assert not any(map(given.allow, bad))
    assert AllowedHosts(["*"], "127.0.0.1").allow("evil.example")


@pytest.mark.parametrize("name", ["", "example.com:80", "http://example.com", "a b", "*.*"])
def test_a_host_pattern_that_is_none_ends_the_start(name: str) -> None:
    with pytest.raises(StartupError, match="--allowed-hosts"):
        AllowedHosts([name], "127.0.0.1")


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        ("*", True),
        ("https://app.example.com:8443", True),
        ("chrome-extension://abcdef", True),
        ("https://app.example.com/", False),
        ("app.example.com", False),
        ("https://*.example.com", False),
        ("", False),
    ],
)
def test_an_origin_that_no_browser_sends_ends_the_start(origin: str, good: bool) -> None:
    if good:
        return check_origins([origin])
    with pytest.raises(StartupError, match="--cors-origins"):
        check_origins(["*", origin])


def test_a_page_that_rebinds_its_name_is_refused() -> None:
    async def use(served: Served) -> None:
        for path, status in (("/v1/models", 421), ("/docs", 421), ("/health", 200)):
            wire = await served.connect()
            wire.writer.write(f"GET {path} HTTP/1.1\r\nHost: evil.example:80\r\n\r\n".encode())
            response = await wire.answer()
            assert response.status_code == status
            if status == 421:
                error = error_of(response)
                assert error.code == "host_not_allowed"
                assert "--allowed-hosts" in error.message
        await served.lives()

    with_server(use)


def test_pages_of_other_sites_read_nothing_and_send_nothing() -> None:
    page = {"Origin": "https://evil.example"}

    async def use(app: Running) -> None:
        asked = page | {"Access-Control-Request-Method": "POST"}
        for path in ("/score", "/v1/models"):
            refused = await app.client.options(path, headers=asked)
            assert refused.status_code == 405
            assert not [name for name in refused.headers if name.startswith("access-control")]
        got = await app.client.get("/v1/models", headers=page)
        assert "access-control-allow-origin" not in got.headers
        # What a page may send without asking for leave.
        for kind in ({}, {"Content-Type": "text/plain"}):
            sent = await app.client.post("/score", content=json.dumps(BODY), headers=page | kind)
            assert sent.status_code == 415
        assert not app.scorer.batches

    with_app(use)


def test_origins_that_are_given_may() -> None:
    page = {"Origin": "https://app.example.com"}
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }

    async def use(app: Running) -> None:
        # Browsers ask without the key.
        leave = await app.client.options("/score", headers=page | asked)
        assert leave.status_code == 200
        assert leave.headers["access-control-allow-origin"] == page["Origin"]
        assert "x-stainless-os" in leave.headers["access-control-allow-headers"]
        refused = await app.client.post("/score", json=BODY, headers=page)
        assert refused.status_code == 401
        # So that the page can tell its user.
        assert refused.headers["access-control-allow-origin"] == page["Origin"]
        assert "access-control-allow-credentials" not in refused.headers
        other = await app.client.options(
            "/score", headers=asked | {"Origin": "https://evil.example"}
        )
        assert "access-control-allow-origin" not in other.headers

    with_app(use, api_key=[KEY], cors_origins=["https://app.example.com"])


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key", KEY], False),
        (["--host", "127.0.0.1"], False),
    ],
)
def test_a_server_that_is_open_to_all_says_so(flags: list[str], warned: bool) -> None:
    with fake_server("ok", *flags) as server:
        server.until("ready")
        server.process.terminate()
        assert server.end() == 0
        assert any("WARNING" in line and "--api-key" in line for line in server.lines) == warned


# --- what is hardly HTTP ---

_SCORE = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_SECOND = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = [
    _SCORE + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + _SECOND,
    _SCORE + b"Content-Length: 2, 3\r\n\r\n{}" + _SECOND,
    _SCORE + b"Content-Length: +2\r\n\r\n{}" + _SECOND,
    _SCORE + b"Content-Length: 0x2\r\n\r\n{}" + _SECOND,
    _SCORE + b"Content-Length : 2\r\n\r\n{}" + _SECOND,
    _SCORE + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND,
    _SCORE + b"X: a\r\n\tContent-Length: 2\r\n\r\n{}" + _SECOND,
    _SCORE + b"X: a\nb\r\n\r\n" + _SECOND,
    _SCORE + b"X: a\rContent-Length: 2\r\n\r\n{}" + _SECOND,
    _SCORE + b"X: a\x00b\r\n\r\n" + _SECOND,
]
BAD_CHUNKS = [b"x\r\n", b"-1\r\n", b"0x5\r\n", b" 5\r\n", b"\r\n", b"f" * 21 + b"\r\n"]
BAD_CHUNKS += [b"2\r\n{}0\r\n\r\n", b"2\r\n{}xx0\r\n\r\n"]


@pytest.mark.parametrize("sent", SMUGGLED)
def test_a_second_request_is_not_smuggled_in(sent: bytes) -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(sent)
        wire.writer.write_eof()
        response = await wire.answer()
        assert response.status_code == 400
        assert error_of(response).code == "invalid_http"
        assert response.headers["connection"] == "close"
        assert await wire.reader.read() == b""
        assert not served.app.scorer.batches
        await served.lives()

    with_server(use)


@pytest.mark.parametrize("chunk", BAD_CHUNKS)
def test_chunks_that_are_none(chunk: bytes) -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(_SCORE + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + _SECOND)
        response = await wire.answer()
        assert response.status_code == 400
        assert error_of(response).code == "invalid_http"
        assert await wire.reader.read() == b""
        await served.requests(0)
        await served.lives()

    with_server(use)


@pytest.mark.parametrize("before", [b"", _SECOND])
@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: y\r\n" % i for i in range(101)),
        b"X: %s\r\n" % (b"y" * 16_384),
        b"X%s: y\r\n" % (b"y" * 16_384),
    ],
)
def test_a_flood_of_headers_is_refused(before: bytes, headers: bytes) -> None:
    """Also where all of it comes at once, behind a request that is well."""

    async def use(served: Served) -> None:
        wire = await served.connect()
        wire.writer.write(
            before + b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
        )
        if before:
            assert (await wire.answer()).status_code == 200
        response = await wire.answer()
        assert response.status_code == 431
        assert error_of(response).code == "headers_too_large"
        assert await wire.reader.read() == b""
        await served.lives()

    with_server(use)


def test_headers_of_a_fair_number_and_length() -> None:
    async def use(served: Served) -> None:
        wire = await served.connect()
        many = b"".join(b"X-%d: %s\r\n" % (i, b"y" * 130) for i in range(99))
        for _ in range(2):
            wire.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")
            assert (await wire.answer()).status_code == 200

    with_server(use)


# --- what answers and the log hold ---


def test_no_text_of_requests_in_the_log_at_any_level(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "sesame-opens"
    caplog.set_level(logging.DEBUG)

    async def use(app: Running) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        for body in (
            {"items": [{"context": text, "continuation": text}], "cache_salt": text},
            {"items": [{"context": text, "continuation": text + "\x01"}]},  # NaN
            {"items": [{"context": text, "continuation": text + "\x03"}]},  # the model raises
            {"items": [{"context": text}]},
            {text: text},
            {"prompt": text, f"{text} and more": text},
        ):
            for path in ("/score", "/v1/completions", "/rerank", "/tokenize"):
                await app.client.post(path, json=body, headers=headers)

        def broken(texts: list[str], *_: object, **__: object) -> None:
            try:
                raise KeyError(texts[0])
            except KeyError as error:
                raise ValueError(f"what is {error}?") from error

        monkeypatch.setattr(app.engine.loaded.encoder, "encode_texts", broken)
        body = {"items": [{"context": text, "continuation": text}]}
        response = await app.client.post("/score", json=body, headers=headers)
        assert response.status_code == 500
        assert text not in response.text

    with_app(use, api_key=[KEY])
    assert "builtins.KeyError" in caplog.text
    assert "builtins.ValueError" in caplog.text
    assert text not in caplog.text
    assert KEY not in caplog.text


def test_answers_hold_no_paths_and_name_no_software() -> None:
    async def use(app: Running) -> None:
        calls = [
            ("GET", p) for p in ("/health", "/version", "/v1/models", "/v1/models/x", "/nowhere")
        ]
        calls += [("PUT", "/score"), ("POST", "/score"), ("POST", "/v1/completions")]
        for method, path in calls:
            response = await app.client.request(method, path)
            assert "server" not in response.headers
            assert "x-powered-by" not in response.headers
            said = response.text.lower()
            here = str(Path(__file__).parent.parent).lower()
            for word in (
                here,
                "traceback",
                "site-packages",
                "python",
                "uvicorn",
                "fastapi",
                "pydantic",
            ):
                assert word not in said, path

    with_app(use)


def test_a_line_of_the_log_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A path that holds a line break must not write lines of its own into the log."""

    async def use(app: Running) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        app.app.router.default = broken  # type: ignore[assignment]
        response = await app.client.get("/x%0aERROR%20forged")
        assert response.status_code == 500

    with_app(use)
    assert "\nERROR forged" not in caplog.text
    assert "ERROR forged" in caplog.text


async def _client_of(app: Running, key: str) -> AsyncClient:
    transport = httpx.ASGITransport(app.app)
    return AsyncClient("http://localhost", api_key=key, transport=transport)


def test_the_clients_errors_hold_no_key() -> None:
    async def use(app: Running) -> None:
        client = await _client_of(app, OTHER)
        async with client:
            with pytest.raises(AuthenticationError) as caught:
                await client.score("a", ["b"])
        error: BaseException | None = caught.value
        while error is not None:
            assert OTHER not in f"{error!r} {error} {vars(error)!r}"
            error = error.__cause__ or error.__context__

    with_app(use, api_key=[KEY])


# --- models ---


def evil(folder: Path) -> Path:
    """A folder's own Python code, which leaves a mark where it runs."""
    mark = folder / "it-ran"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "from mlx_lm.models.llama import Model, ModelArgs\n"
        "from transformers import PreTrainedTokenizerFast as EvilTokenizer\n"
    )
    return mark


def change(file: Path, **more: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def load_failure(**flags: Any) -> str:
    async def use(engine: Engine) -> None:
        raise AssertionError("it was loaded")

    settings = Settings(**flags)
    with pytest.raises(StartupError) as caught:
        with_engine(lambda: load(settings), use)
    return str(caught.value)


def test_a_tokenizers_own_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("nobody may be asked")

    monkeypatch.setattr("builtins.input", asked)
    folder = save_model(tmp_path / "mine")
    mark = evil(folder)
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="EvilTokenizer",
        auto_map={"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]},
    )
    message = load_failure(model=str(folder))
    assert "--trust-remote-code" in message
    assert "\n" not in message
    assert not mark.exists()


def test_a_models_own_code_is_run_only_where_it_is_trusted(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mine")
    mark = evil(folder)
    change(folder / "config.json", model_file="evil.py")
    assert "--trust-remote-code" in load_failure(model=str(folder))
    assert not mark.exists()

    async def use(engine: Engine) -> None:
        assert engine.loaded.card.root == "mine"

    settings = Settings(model=str(folder), trust_remote_code=True)
    with_engine(lambda: load(settings), use)
    assert mark.exists()


def test_code_is_not_even_fetched_unless_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = save_model(tmp_path / "models--a--b" / "snapshots" / commit)
    wanted: list[list[str]] = []

    def fetch(hub_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        wanted.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert find_checkpoint(Settings(model="a/b")) == (folder, "a/b")
    find_checkpoint(Settings(model="a/b", trust_remote_code=True))
    assert [any(name.endswith(".py") for name in names) for names in wanted] == [False, True]

    async def use(engine: Engine) -> None:
        assert engine.loaded.card.revision == commit

    with_engine(lambda: load(Settings(model="a/b", revision="main")), use)
    assert commit_of(folder.parent) is None


ESCAPES = [
    "{{ messages.__class__.__mro__ }}",
    "{{ messages|attr('__class__')|attr('__mro__') }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{% include 'secret' %}",
    "{{ messages.append(1) }}",
    "{% for i in range(10**9) %}{% endfor %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_cannot_leave_its_sandbox(template: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}" + template

    async def main() -> None:
        async with running(tokenizer=tokenizer) as app:
            item = {"messages": [{"role": "user", "content": "a"}], "continuation": "b"}
            response = await app.score(items=[item])
            # Refused, or nothing was found there.
            if response.status_code != 200:
                assert response.status_code == 400
                assert error_of(response).param == "items[0].messages"
            for row in (row for batch in app.scorer.batches for row in batch.rows):
                assert bytes(row.ids.tolist()) == b"ab"

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/score", "/tokenize"])
def test_a_request_brings_no_template_of_its_own(path: str) -> None:
    async def use(app: Running) -> None:
        messages = [{"role": "user", "content": "a"}]
        for more in (
            {"chat_template": "{{ 1 }}"},
            {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        ):
            body: dict[str, Any] = {"messages": messages}
            if path == "/score":
                body = {"items": [body | {"continuation": "b"}]}
            response = await app.client.post(path, json=body | more)
            assert response.status_code == 400
            assert "chat_template" in error_of(response).message

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"

    async def main() -> None:
        async with running(tokenizer=tokenizer) as app:
            await use(app)

    asyncio.run(main())
