"""One line of the log for each request: what it holds, how it looks, what it never tells."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest
from fakes import BOOM, Running, with_app
from server_process import FAKE, ServerProcess
from sockets import GOOD, Served, with_server

from mlxscore_server.log_format import JsonFormatter, TextFormatter

SECRET = "zanzibar"


@contextmanager
def logged(formatter: logging.Formatter, level: int = logging.INFO) -> Iterator[io.StringIO]:
    out = io.StringIO()
    handler, log = logging.StreamHandler(out), logging.getLogger("mlxscore")
    handler.setFormatter(formatter)
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield out
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def requests(out: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    return [line for line in lines if line["message"] == "request"]


def test_a_line_a_request() -> None:
    async def use(app: Running) -> None:
        with logged(JsonFormatter()) as out:
            mine = {"X-Request-Id": "mine-1"}
            body = {"items": [{"context": "abc", "continuations": ["d", "ef"]}]}
            await app.client.post("/score", json=body, headers=mine)
            await app.client.get("/version")
        scored, version = requests(out)
        assert datetime.fromisoformat(scored.pop("time")).tzinfo is not None
        times = {key: scored.pop(key) for key in list(scored) if key.endswith("_ms")}
        assert scored == {
            "level": "info",
            "message": "request",
            "id": "mine-1",
            "method": "POST",
            "route": "/score",
            "status": 200,
            "client": "127.0.0.1",
            "rows": 2,
            "tokens": 7,
            "computed_tokens": 7,
            "cached_tokens": 0,
        }
        assert list(times) == [
            *("read_ms", "tokenise_ms", "queue_ms", "compute_ms", "respond_ms", "total_ms")
        ]
        assert all(value >= 0 for value in times.values())
        assert len(version["id"]) == 32
        assert "rows" not in version
        assert (version["route"], version["status"]) == ("/version", 200)

    with_app(use)


def test_no_text_and_no_path_that_is_made_up_is_told() -> None:
    async def use(app: Running) -> None:
        with logged(JsonFormatter(), logging.DEBUG) as out:
            await app.score(items=[{"context": SECRET, "continuation": SECRET}], cache_salt=SECRET)
            await app.score(items=[{"context": SECRET, "continuation": chr(BOOM)}])
            await app.client.get(f"/{SECRET}?key={SECRET}")
            await app.client.get(f"/score?key={SECRET}", headers={"Authorization": SECRET})
            await app.client.request(SECRET, "/version")
            await app.client.post("/tokenize", json={"prompt": SECRET, "model": SECRET})
        assert len(requests(out)) == 6
        assert SECRET not in out.getvalue()
        assert [line["route"] for line in requests(out)][2] == "unknown"
        assert [line["method"] for line in requests(out)][4] == "OTHER"

    with_app(use)


def test_text_for_people() -> None:
    async def use(app: Running) -> None:
        with logged(TextFormatter()) as out:
            await app.score(items=[GOOD])
        (line,) = out.getvalue().splitlines()
        assert " INFO request id=" in line
        assert " method=POST route=/score status=200 client=127.0.0.1 rows=1 tokens=1 " in line
        assert line.split()[-1].startswith("total_ms=")

    with_app(use)


def test_what_machines_ask_all_day_is_told_to_who_debugs() -> None:
    async def use(app: Running) -> None:
        for level, count in ((logging.INFO, 0), (logging.DEBUG, 4)):
            with logged(JsonFormatter(), level) as out:
                for path in ("/health", "/health/", "/ready", "/metrics"):
                    await app.client.get(path)
            assert len(requests(out)) == count

    with_app(use)


def test_above_info_nothing_is_made() -> None:
    async def use(app: Running) -> None:
        with logged(JsonFormatter(), logging.WARNING) as out:
            await app.score(items=[GOOD])
        assert out.getvalue() == ""

    with_app(use)


def test_the_tenant_where_a_key_has_one() -> None:
    async def use(app: Running) -> None:
        with logged(JsonFormatter()) as out:
            for key in ("secret-1", "secret-2", "secret-1", "neither"):
                await app.client.get("/version", headers={"X-API-Key": key})
        first, other, again, refused = requests(out)
        assert first["tenant"] == again["tenant"] != other["tenant"]
        assert (refused["status"], "tenant" in refused) == (401, False)
        assert "secret" not in out.getvalue()

    with_app(use, api_key=["secret-1", "secret-2"])


def test_a_client_that_leaves() -> None:
    async def use(served: Served) -> None:
        with logged(JsonFormatter()) as out:
            await served.leave_while_running(json.dumps({"items": [GOOD]}).encode())
        (line,) = requests(out)
        assert (line["status"], line["rows"]) == (499, 1)
        assert "compute_ms" in line
        assert "respond_ms" not in line

    with_server(use)


def test_an_exception_is_one_line_too(caplog: pytest.LogCaptureFixture) -> None:
    with logged(JsonFormatter()) as out:
        try:
            raise KeyError("weights\nand more")
        except KeyError:
            logging.getLogger("mlxscore").exception("it failed:\n%s", "so")
        logging.getLogger("mlxscore").warning("odd: %s", {1, "\ud800"})
    failed, odd = map(json.loads, out.getvalue().splitlines())
    assert failed["message"] == "it failed:\nso"
    assert failed["exception"].endswith("KeyError: 'weights\\nand more'")
    assert odd["level"] == "warning"
    other = logging.LogRecord("uvicorn", logging.INFO, "", 0, "hello", None, None)
    assert json.loads(JsonFormatter().format(other))["logger"] == "uvicorn"


def test_the_flag() -> None:
    with ServerProcess("--log-format", "json", command=FAKE) as server:
        assert httpx.get(f"{server.url}/version").status_code == 200
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.lines]
    assert [line["route"] for line in lines if line["message"] == "request"] == ["/version"]
