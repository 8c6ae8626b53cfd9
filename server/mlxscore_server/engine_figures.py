"""The engine's and the model's figures at the moment of a scrape, as Prometheus' metric families."""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mlxscore_client.version import __version__
from mlxscore_server.engine import Engine
from mlxscore_server.stats import Sizes, Stats

_STATES = ("loading", "ok", "draining", "failed")


class EngineFigures(Collector):
    """Nothing is counted here: all of it is read when it is asked for."""

    def __init__(
        self, engine: Engine, max_queued_tokens: int, in_progress: Callable[[], int]
    ) -> None:
        self._engine, self._max_queued_tokens = engine, max_queued_tokens
        self._in_progress = in_progress
        self._build = {
            "version": __version__,
            "mlx_version": _version("mlx"),
            "mlx_lm_version": _version("mlx-lm"),
            "python_version": platform.python_version(),
        }

    def describe(self) -> list[Metric]:
        """None: the registry would collect all of it to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._server()
        yield from self._queue()
        # Before the model is there, it has done nothing.
        stats = self._engine.stats or Stats()
        yield from _tokens(stats)
        yield from _batches(stats)
        yield from _memory(stats)

    def _server(self) -> Iterator[Metric]:
        yield InfoMetricFamily("mlxscore_build", "What is running.", self._build)
        state = self._engine.state
        if self._engine.stats is not None:
            card = self._engine.loaded.card
            model = {
                "model": card.id,
                "dtype": card.dtype,
                "head_dtype": card.head_dtype,
                "layout": card.self_check.layout,
                "fingerprint": card.system_fingerprint,
            }
            yield InfoMetricFamily("mlxscore_model", "What scores.", model)
            most = self._engine.loaded.scorer.max_batch_tokens
            yield _gauge("micro_batch_limit_tokens", "Less once memory has run out.", most)
        states = GaugeMetricFamily(
            "mlxscore_state", "1 for the state that the server is in.", labels=["state"]
        )
        for name in _STATES:
            states.add_metric([name], float(name == state))
        yield states
        yield _gauge(
            "requests_in_progress", "Requests that are being answered.", self._in_progress()
        )

    def _queue(self) -> Iterator[Metric]:
        line = self._engine.line
        yield _gauge("scoring_requests", "Requests that wait or are scored.", line.requests)
        yield _gauge("queue_requests", "Requests with rows that wait.", line.waiting)
        yield _gauge("queue_tokens", "Tokens that wait.", line.waiting_tokens)
        yield _gauge(
            "queue_limit_tokens",
            "Tokens that may wait (--max-queued-tokens).",
            self._max_queued_tokens,
        )
        yield _gauge(
            "queue_oldest_age_seconds", "Since the first of those that wait came.", line.oldest
        )


def _tokens(stats: Stats) -> Iterator[Metric]:
    yield _counter("flat_tokens", "Tokens as rows were asked for.", stats.flat_tokens)
    yield _counter("computed_tokens", "Tokens computed, padding aside.", stats.computed_tokens)
    yield _counter(
        "cached_tokens", "Tokens of rows found in the prefix cache.", stats.cached_tokens
    )
    yield _counter("padded_tokens", "Tokens computed, padding included.", stats.padded_tokens)
    padding = (
        1 - stats.computed_tokens / max(1, stats.padded_tokens) if stats.padded_tokens else 0.0
    )
    yield _gauge(
        "padding_ratio", "Share of padding in what was computed, since the start.", padding
    )


def _batches(stats: Stats) -> Iterator[Metric]:
    yield _sizes("window_rows", "Rows planned together.", stats.window_rows)
    yield _sizes("window_tokens", "Tokens planned together, as asked for.", stats.window_tokens)
    yield _sizes("micro_batch_tokens", "Tokens computed together.", stats.micro_batch_tokens)
    yield _counter("planning_seconds", "Time spent planning windows.", stats.planning_seconds)


def _memory(stats: Stats) -> Iterator[Metric]:
    """As it was when the last window was over."""
    yield _counter("prefix_cache_hits", "Rows that began with something kept.", stats.cached_rows)
    yield _gauge("prefix_cache_tokens", "Tokens that are kept.", stats.kept_tokens)
    yield _gauge("prefix_cache_bytes", "Memory of what is kept.", stats.kept_bytes)
    yield _gauge("prefix_cache_limit_bytes", "Memory it may take.", stats.kept_bytes_limit)
    yield _gauge("device_memory_active_bytes", "What MLX's arrays hold.", stats.active_bytes)
    yield _gauge("device_memory_peak_bytes", "The most that they held.", stats.peak_bytes)
    yield _gauge("device_memory_cache_bytes", "Freed, kept for reuse by MLX.", stats.cache_bytes)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mlxscore_{name}", what, value)


def _counter(name: str, what: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"mlxscore_{name}", what, value)


def _sizes(name: str, what: str, sizes: Sizes) -> HistogramMetricFamily:
    return HistogramMetricFamily(
        f"mlxscore_{name}", what, buckets=sizes.up_to(), sum_value=float(sizes.sum)
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
