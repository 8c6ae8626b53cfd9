"""What a scrape says, on the main port or on its own; Server-Timing; readiness; the dashboard."""

import asyncio
import configparser
import json
import plistlib
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import BOOM, NAN, Running, running, with_app
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from server_process import FAKE, ServerProcess
from sockets import GOOD, Served, with_server
from tiny_models import build

from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.loop_lag import LoopLag
from mlxscore_server.metrics import Metrics
from mlxscore_server.settings import Settings
from mlxscore_server.stats import Sizes

TESTS = Path(__file__).parent
DEPLOY = TESTS.parent / "docs" / "deploy"
STAGES = {"read", "tokenise", "queue", "compute", "respond"}


class Scrape(dict[str, float]):
    """The samples of an exposition, by name and labels as they are written."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        for family in self.families:
            for sample in family.samples:
                labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
                name = f"{sample.name}{{{labels}}}" if labels else sample.name
                assert name not in self, name
                self[name] = sample.value


async def scrape(client: httpx.AsyncClient) -> Scrape:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Scrape(response.text)


def total(endpoint: str, status: int) -> str:
    return f'mlxscore_requests_total{{endpoint="{endpoint}",status="{status}"}}'


def test_what_is_counted() -> None:
    async def use(app: Running) -> None:
        await app.score(items=[{"context": "abc", "continuations": ["d", "ef"]}])
        await app.score(items=[{"context": "a", "continuation": chr(NAN)}])
        await app.score(items=[])
        for odd in ("/one", "/two/..x", "/score/x", "/%00"):
            assert (await app.client.get(odd)).status_code == 404
        assert (await app.client.request("BREW", "/score")).status_code == 405
        assert (await app.client.get("/v1/models/bytes")).status_code == 200
        assert (await app.client.get("/v1/models/no/such")).status_code == 404
        assert (await app.client.post("/tokenize", json={"prompt": "a"})).status_code == 200
        found = await scrape(app.client)
        assert found[total("/score", 200)] == 1
        assert found[total("/score", 500)] == 1
        assert found[total("/score", 400)] == 1
        assert found[total("/score", 405)] == 1
        assert found[total("/tokenize", 200)] == 1
        assert found[total("unknown", 404)] == 4
        assert found[total("/v1/models/{name}", 200)] == 1
        assert found[total("/v1/models/{name}", 404)] == 1
        assert len([name for name in found if name.startswith("mlxscore_requests_total")]) == 8
        assert found["mlxscore_rows_total"] == 2
        assert found['mlxscore_request_duration_seconds_count{endpoint="/score"}'] == 4
        for stage, times in {"read": 4, "tokenise": 4, "queue": 2, "compute": 2}.items():
            assert found[f'mlxscore_stage_duration_seconds_count{{stage="{stage}"}}'] == times
        # The bytes read of "abcd", "abcef" without their last; of the other row twice: tried again alone.
        assert found["mlxscore_flat_tokens_total"] == 3 + 4 + 1
        assert found["mlxscore_computed_tokens_total"] == 3 + 4 + 1
        assert found["mlxscore_window_rows_count"] == 2
        assert found["mlxscore_window_rows_sum"] == 3
        assert found['mlxscore_window_rows_bucket{le="1.0"}'] == 1
        assert found["mlxscore_micro_batch_tokens_sum"] == 3 + 4 + 1
        assert found["mlxscore_requests_in_progress"] == 1  # the scrape itself
        assert found['mlxscore_state{state="ok"}'] == 1
        assert found["mlxscore_micro_batch_limit_tokens"] == 4096
        assert found["process_open_fds"] > 0
        again = await scrape(app.client)
        assert again[total("/metrics", 200)] == 1

    with_app(use)


def test_names_are_prometheus_own_way_and_labels_are_bounded() -> None:
    async def use(app: Running) -> None:
        await app.score(items=[GOOD])
        found = await scrape(app.client)
        ours = [f for f in found.families if not f.name.startswith("process_")]
        assert len(ours) > 25
        for family in ours:
            assert family.name.startswith("mlxscore_")
            assert family.documentation.strip()
            assert not re.search(r"_(ms|milliseconds|mb|kb|percent|minutes)\b", family.name)
            assert (family.type == "counter") == (
                any(sample.name.endswith("_total") for sample in family.samples)
            )
            for sample in family.samples:
                assert set(sample.labels) <= {
                    *("endpoint", "status", "stage", "state", "le"),
                    *("version", "mlx_version", "mlx_lm_version", "python_version"),
                    *("model", "dtype", "head_dtype", "layout", "fingerprint"),
                }
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        response = await app.client.get("/metrics", headers=accept)
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name for family in open_metrics(response.text)}
        assert {"mlxscore_requests", "mlxscore_build", "mlxscore_queue_tokens"} <= families

    with_app(use)


def test_the_queue_and_the_age_of_its_oldest() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        before = await scrape(app.client)
        assert before["mlxscore_scoring_requests"] == 1
        assert before["mlxscore_queue_requests"] == 0
        assert before["mlxscore_queue_oldest_age_seconds"] == 0
        waiting = [
            asyncio.create_task(app.score(items=[{"context": "abc", "continuation": "de"}]))
            for _ in range(2)
        ]
        await app.waiting(8)
        found = await scrape(app.client)
        assert found["mlxscore_scoring_requests"] == 3
        assert found["mlxscore_queue_requests"] == 2
        assert found["mlxscore_queue_tokens"] == 8
        assert found["mlxscore_queue_limit_tokens"] == 1000
        first = found["mlxscore_queue_oldest_age_seconds"]
        assert 0 < first < (await scrape(app.client))["mlxscore_queue_oldest_age_seconds"]
        waiting[0].cancel()
        await app.waiting(4)
        assert (await scrape(app.client))["mlxscore_queue_requests"] == 1
        app.scorer.gate.set()
        await asyncio.gather(held, *waiting, return_exceptions=True)
        after = await scrape(app.client)
        assert after["mlxscore_scoring_requests"] == after["mlxscore_queue_tokens"] == 0

    with_app(use, max_queued_tokens=1000)


def test_each_application_counts_for_itself() -> None:
    async def main() -> None:
        async with running() as one, running() as other:
            await one.score(items=[GOOD])
            assert (await scrape(one.client))[total("/score", 200)] == 1
            assert total("/score", 200) not in await scrape(other.client)

    asyncio.run(main())


def test_before_the_model_is_there_and_after_it_has_gone() -> None:
    async def main() -> None:
        def load() -> Any:
            raise KeyError("weights")

        settings = Settings()
        engine = Engine(settings, load)
        transport = httpx.ASGITransport(create_app(engine, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = await scrape(client)
            assert found['mlxscore_state{state="loading"}'] == 1
            assert found["mlxscore_computed_tokens_total"] == 0
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
            assert int(ready.headers["retry-after"]) >= 1
            engine.start()
            await engine.stopped.wait()
            assert (await scrape(client))['mlxscore_state{state="failed"}'] == 1
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": "failed"})
            assert int(ready.headers["retry-after"]) >= 1
        await engine.close()

    asyncio.run(main())


def test_ready_while_it_works_and_no_more_while_it_drains() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        ready = await app.client.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
        assert "retry-after" not in ready.headers
        draining = asyncio.create_task(app.engine.drain(30))
        await asyncio.sleep(0)
        ready = await app.client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        assert int(ready.headers["retry-after"]) >= 1
        app.scorer.gate.set()
        assert (await held).status_code == 200
        await draining

    with_app(use)


def timings(response: httpx.Response) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in response.headers["server-timing"].split(", "):
        match = re.fullmatch(r"([a-z]+);dur=(\d+\.\d+)", part)
        assert match, part
        found[match[1]] = float(match[2])
    return found


def test_server_timing_on_every_answer_as_far_as_it_came() -> None:
    async def use(app: Running) -> None:
        good = timings(await app.score(items=[GOOD]))
        assert set(good) == {*STAGES, "total"}
        assert sum(good.values()) <= 2 * good["total"]
        bad = await app.score(items=[{"context": "a", "continuation": chr(BOOM)}])
        assert (bad.status_code, set(timings(bad))) == (
            500,
            {"read", "tokenise", "queue", "compute", "total"},
        )
        wrong = await app.score(items=[])
        assert (wrong.status_code, set(timings(wrong))) == (400, {"read", "tokenise", "total"})
        for response in (await app.client.get("/nothing"), await app.client.get("/health")):
            assert set(timings(response)) == {"total"}
            assert response.headers["x-request-id"]

        held = await app.hold()
        queued = asyncio.create_task(app.score(items=[{"context": "a", "continuation": "bcd"}]))
        await app.waiting(3)
        full = await app.score(items=[GOOD])
        assert (full.status_code, set(timings(full))) == (429, {"total"})  # before it is read
        app.scorer.gate.set()
        waited = timings(await queued)
        assert waited["queue"] > full.elapsed.total_seconds() * 1000  # it stood there all that time
        await held

    with_app(use, max_queued_tokens=3)


def test_a_client_that_leaves_is_counted_as_such() -> None:
    async def use(served: Served) -> None:
        await served.leave_while_running(json.dumps({"items": [GOOD]}).encode())
        served.app.scorer.gate.set()
        found = await scrape(served.app.client)
        assert found[total("/score", 499)] == 1
        assert found["mlxscore_requests_in_progress"] == 1
        assert found["mlxscore_rows_total"] == 0
        assert found['mlxscore_stage_duration_seconds_count{stage="compute"}'] == 1

    with_server(use)


def test_the_loop_s_lag_is_seen_while_there_are_requests_and_nothing_ticks_after() -> None:
    async def main() -> None:
        loop, seen = asyncio.get_running_loop(), list[float]()
        ticked = asyncio.Event()

        def observe(seconds: float) -> None:
            seen.append(seconds)
            ticked.set()

        lag = LoopLag(observe)
        lag.enter()
        lag.enter()
        lag.leave()
        timer = lag._timer
        assert timer is not None
        while loop.time() < timer.when() + 0.02:  # what blocks the loop
            pass
        await ticked.wait()
        assert seen[0] >= 0.02
        ticked.clear()
        await ticked.wait()  # one is still being answered
        lag.leave()
        ticked.clear()
        await ticked.wait()
        assert lag._timer is None
        assert len(seen) == 3
        lag.enter()
        assert lag._timer is not None

    asyncio.run(main())


def test_sizes_fall_into_classes() -> None:
    sizes = Sizes((1, 4, 16))
    for size in (0, 1, 2, 4, 5, 16, 17, 1000):
        sizes.note(size)
    assert sizes.up_to() == [("1.0", 2), ("4.0", 4), ("16.0", 6), ("+Inf", 8)]
    assert sizes.sum == 1045


def test_the_real_scorer_s_figures() -> None:
    import numpy as np

    from mlxscore_server.device import current
    from mlxscore_server.row import Row
    from mlxscore_server.scoring import BatchScorer

    scorer = BatchScorer(build("llama"), current(), layout="packed", kept_bytes=2**20)
    rows = [Row(np.arange(1, 41 + i, dtype=np.int32), 30) for i in (0, 3)]
    scorer.score_rows(rows)
    scorer.start_counting()
    assert scorer.stats.flat_tokens == scorer.stats.window_rows.sum == 0
    assert scorer.stats.kept_bytes == scorer.kept.bytes > 0
    scorer.score_rows(rows)
    stats = scorer.stats
    assert (stats.cached_rows, stats.windows) == (2, 1)
    assert stats.cached_tokens > 60
    assert stats.flat_tokens == stats.window_tokens.sum == 39 + 42
    assert stats.window_rows.sum == 2
    assert stats.micro_batch_tokens.sum == stats.computed_tokens
    assert stats.kept_tokens == scorer.kept.num_tokens > 0
    assert stats.kept_bytes_limit == 2**20
    assert stats.peak_bytes >= stats.active_bytes > 0


def test_a_port_of_its_own() -> None:
    with ServerProcess("--metrics-port", "0", command=FAKE) as server, httpx.Client() as client:
        apart = next(line for line in server.lines if "metrics at" in line).split()[-1]
        port = apart.rsplit(":", 1)[1].removesuffix("/metrics")
        assert client.post(f"{server.url}/score", json={"items": [GOOD]}).status_code == 200
        assert client.get(f"{server.url}/metrics").status_code == 404
        found = Scrape(client.get(apart).text)
        assert found[total("/score", 200)] == 1
        assert found[total("unknown", 404)] == 1
        assert client.get(f"http://127.0.0.1:{port}/score").status_code == 404
        taken = subprocess.run(
            [*FAKE, "--port", "0", "--metrics-port", port],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert taken.returncode == 2
        assert re.search(r"error: cannot listen on .*\(--host, --metrics-port\)\n$", taken.stderr)
        assert server.stop() == 0


def _expressions(panel: Any) -> list[str]:
    if isinstance(panel, dict):
        own = [value for key, value in panel.items() if key in ("expr", "query", "definition")]
        return [e for e in own if isinstance(e, str)] + _expressions(list(panel.values()))
    return [e for part in panel for e in _expressions(part)] if isinstance(panel, list) else []


def test_the_dashboard_uses_only_what_there_is() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))

    async def use(app: Running) -> None:
        await app.score(items=[GOOD])
        found = {name.partition("{")[0] for name in await scrape(app.client)}
        expressions = _expressions(dashboard)
        used = {
            name
            for expression in expressions
            for name in re.findall(r"\b(?:mlxscore|process)_[a-z_]+", expression)
        }
        assert len(used) > 20
        assert used <= found
        # And each of ours is either shown or a part of what is.
        assert {name for name in found if name.startswith("mlxscore_queue")} <= used

    with_app(use)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) > 8


def test_the_page_names_every_metric() -> None:
    page = (TESTS.parent / "docs" / "observability.md").read_text("utf-8")
    metrics = Metrics(Engine(Settings(), lambda: pytest.fail("not loaded here")), 1)
    families = list(text_string_to_metric_families(metrics.render("")[0].decode()))
    named = set(re.findall(r"`(mlxscore_[a-z_]+)`", page))
    made = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if family.name.startswith("mlxscore_") and not family.name.endswith("_created")
    }
    # Those two are there once a model is.
    assert named == made | {"mlxscore_model_info", "mlxscore_micro_batch_limit_tokens"}


def test_the_units_of_supervisors_are_well_formed() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    assert unit.read(DEPLOY / "mlxscore.service")
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    assert "mlxscore-server" in service["ExecStart"]
    # The drain must be over before systemd loses patience.
    assert int(service["TimeoutStopSec"]) > Settings().drain_timeout
    plist = plistlib.loads((DEPLOY / "mlxscore.plist").read_bytes())
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ExitTimeOut"] > Settings().drain_timeout
    assert plist["ProgramArguments"][0].endswith("mlxscore-server")


def test_each_endpoint_is_counted_under_its_own_name() -> None:
    async def use(app: Running) -> None:
        paths = app.app.openapi()["paths"]
        for path in paths:
            await app.client.request("OPTIONS", path.replace("{name}", "bytes"))
        found = await scrape(app.client)
        assert len(paths) > 10
        assert {total(path, 405) for path in paths} <= set(found)

    with_app(use, enable_tokenizer_info_endpoint=True)
