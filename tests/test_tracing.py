"""Spans for a request and its stages; the trace that it is a part of; nothing unless asked for."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from fakes import BOOM, ByteScorer, loaded
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from server_process import FAKE, ServerProcess
from sockets import GOOD

from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.settings import Settings
from mlxscore_server.tracing import Tracing, from_environment

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traced(use: Callable[[httpx.AsyncClient], Awaitable[object]]) -> tuple[ReadableSpan, ...]:
    """The spans of what `use` asks for."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main() -> None:
        settings, tracing = Settings(), Tracing(provider)
        engine = Engine(settings, lambda: loaded(ByteScorer()))
        app = create_app(engine, settings, tracing)
        engine.start()
        try:
            await engine.ready()
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                await use(client)
        finally:
            await engine.close()
            await tracing.close()

    asyncio.run(main())
    return exporter.get_finished_spans()


def test_a_span_for_the_request_and_one_for_each_stage() -> None:
    spans = traced(lambda client: client.post("/score", json={"items": [GOOD]}))
    *stages, whole = spans
    assert whole.name == "POST /score"
    assert whole.kind == SpanKind.SERVER
    assert whole.parent is None
    assert whole.attributes is not None
    assert whole.attributes["http.route"] == "/score"
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["mlxscore.rows"] == whole.attributes["mlxscore.tokens"] == 1
    names = [span.name for span in stages]
    # Written, then sent.
    assert names == ["read", "tokenise", "queue", "compute", "respond", "respond"]
    before = whole.start_time
    assert before is not None
    for span in stages:
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert whole.end_time is not None
        # A microsecond for what float seconds since 1970 do not hold.
        assert before - 1000 <= span.start_time <= span.end_time <= whole.end_time + 1000
        before = span.start_time


def test_the_trace_that_the_caller_began_goes_on() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    spans = traced(lambda client: client.post("/score", json={"items": [GOOD]}, headers=headers))
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    whole = spans[-1]
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert whole.context.trace_state.get("vendor") == "1"
    # A caller that does not sample is not sampled here.
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert traced(lambda client: client.get("/version", headers=headers)) == ()
    headers = {"traceparent": "rubbish"}
    (span,) = [s for s in traced(lambda c: c.get("/version", headers=headers)) if s.parent is None]
    assert f"{span.context.trace_id:032x}" != TRACE


def test_failures_are_marked_and_probes_left_out() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        await client.post("/score", json={"items": [{"context": "a", "continuation": chr(BOOM)}]})
        await client.post("/score", json={"items": []})
        for path in ("/health", "/ready", "/metrics"):
            await client.get(path)

    failed, refused = [span for span in traced(use) if span.parent is None]
    assert failed.status.status_code == StatusCode.ERROR
    assert refused.status.status_code == StatusCode.UNSET


def test_nothing_is_imported_unless_an_endpoint_is_named() -> None:
    code = (
        "import sys; from mlxscore_server import app, tracing\n"
        "assert tracing.from_environment() is None\n"
        "print(*[m for m in sys.modules if m.startswith(('opentelemetry.sdk', "
        "'opentelemetry.exporter', 'google.protobuf', 'requests'))])"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    for extra in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}):
        out = subprocess.run(
            [sys.executable, "-c", code],
            env=env | extra,
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == ""


def test_without_the_extra_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector/v1/traces")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert from_environment() is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set" in record.getMessage()
    assert "pip install 'mlxscore[otel]'" in record.getMessage()


def test_a_process_sends_its_last_spans_before_it_ends() -> None:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        env = os.environ | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",  # so that nothing goes before the end
            "OTEL_SERVICE_NAME": "scores",
        }
        try:
            with ServerProcess(command=FAKE, env=env) as server:
                httpx.post(f"{server.url}/score", json={"items": [GOOD]}).raise_for_status()
                assert bodies == []
                assert server.stop() == 0
        finally:
            collector.shutdown()
    sent = ExportTraceServiceRequest.FromString(b"".join(bodies))
    (resource,) = sent.resource_spans
    named = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert named["service.name"] == "scores"
    spans = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert "POST /score" in spans
    assert "compute" in spans
