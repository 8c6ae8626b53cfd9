"""What the server tells Prometheus: counts of its own, and the engine's figures as they are now.

Each application has a registry of its own. What is counted here is counted on the event loop; the
model's figures are plain numbers that its thread has noted, so a scrape never waits for it.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mlxscore_server.engine import Engine
from mlxscore_server.engine_figures import EngineFigures
from mlxscore_server.finished import Finished
from mlxscore_server.loop_lag import LoopLag

# Seconds: a cached word takes a millisecond, a bulk request minutes.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """Told of each request; `render` is the answer to a scrape."""

    def __init__(self, engine: Engine, max_queued_tokens: int) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "mlxscore_requests",
            "Requests by endpoint and status; 499: the client left before its answer began.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "mlxscore_request_duration_seconds",
            "From a request's first line to its answer's last byte.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "mlxscore_stage_duration_seconds",
            "Time of a request in a stage: read, tokenise, queue, compute, respond.",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._rows = Counter(
            "mlxscore_rows", "Rows of requests that were answered.", registry=self.registry
        )
        lag = Histogram(
            "mlxscore_event_loop_lag_seconds",
            "How late the event loop was, sampled ten times a second while requests are answered.",
            buckets=_LAGS,
            registry=self.registry,
        )
        self._lag = LoopLag(lag.observe)
        self._in_progress = 0
        self.registry.register(EngineFigures(engine, max_queued_tokens, lambda: self._in_progress))
        ProcessCollector(registry=self.registry)

    def begin(self) -> None:
        """A request has come."""
        self._in_progress += 1
        self._lag.enter()

    def end(self, request: Finished) -> None:
        """A request that `begin` was told of is over."""
        self._in_progress -= 1
        self._lag.leave()
        self._requests.labels(request.route, str(request.status)).inc()
        self._seconds.labels(request.route).observe(request.seconds)
        for stage, seconds in request.timing.stages().items():
            self._stages.labels(stage).observe(seconds)
        if request.status == 200:
            self._rows.inc(request.timing.rows)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition in the format that suits an Accept header, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type
