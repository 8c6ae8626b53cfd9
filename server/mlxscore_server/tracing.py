"""Traces for OpenTelemetry: a span for each request and for each of its stages.

Spans are made once a request is over, from the times that were noted. Nothing of OpenTelemetry is
imported unless the environment names an endpoint.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlxscore_client.version import __version__
from mlxscore_server.finished import QUIET, Finished

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("mlxscore")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_FAREWELL_SECONDS = 3  # for the last spans, where the collector does not answer


class Tracing:
    """Records requests as spans; the trace context that a request brings is their parent."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("mlxscore", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, request: Finished, headers: Mapping[str, str]) -> None:
        """A request that is over, and the headers that it came with."""
        if request.route in QUIET:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        # Wall time is what traces are shown in; durations are not taken from it.
        offset = time.time() - time.monotonic()
        timing = request.timing
        attributes: dict[str, str | int] = {
            "http.request.method": request.method,
            "http.route": request.route,
            "http.response.status_code": request.status,
            "client.address": request.client,
            "mlxscore.request_id": request.id,
            "mlxscore.rows": timing.rows,
            "mlxscore.tokens": timing.tokens,
            "mlxscore.computed_tokens": timing.computed_tokens,
            "mlxscore.cached_tokens": timing.cached_tokens,
        }
        whole = self._tracer.start_span(
            f"{request.method} {request.route}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=_nanoseconds(timing.began + offset),
        )
        if request.status >= 500:
            whole.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(whole)
        for stage, begin, end in timing.spans:
            part = self._tracer.start_span(
                stage, context=inside, start_time=_nanoseconds(begin + offset)
            )
            part.end(_nanoseconds(end + offset))
        whole.end(_nanoseconds(timing.began + request.seconds + offset))

    async def close(self) -> None:
        """Send what is left, within bounds: a collector that is away must not keep the process alive."""
        sending = asyncio.to_thread(self._provider.force_flush, 1000 * _FAREWELL_SECONDS)
        try:
            await asyncio.wait_for(sending, _FAREWELL_SECONDS)
        except TimeoutError:
            log.warning("the last traces could not be sent within %d s", _FAREWELL_SECONDS)


def from_environment() -> Tracing | None:
    """To the collector that OpenTelemetry's own variables name, if they name one."""
    named = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if named is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "%s is set, but %s is not installed: no traces (pip install 'mlxscore[otel]')",
            named,
            error.name,
        )
        return None
    name = os.environ.get("OTEL_SERVICE_NAME", "mlxscore")
    resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    log.info("traces go to the collector that %s names", named)
    return Tracing(provider)


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)
