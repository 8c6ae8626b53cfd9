"""A request that is over: what may be told of it, and its line in the log. Never text, never keys."""

import logging
from dataclasses import dataclass

from mlxscore_server.timing import Timing

log = logging.getLogger("mlxscore")

UNKNOWN = "unknown"
"""The route of a path at which there is nothing."""
CLIENT_LEFT = 499
"""The status, as nginx has it, where a client left before its answer began."""

QUIET = frozenset({"/health", "/health/", "/ready", "/metrics"})
"""What machines ask all day long."""


@dataclass(frozen=True)
class Finished:
    id: str
    """X-Request-Id; empty where the client left before its answer began."""
    method: str
    route: str
    status: int
    client: str
    """Its address."""
    tenant: str | None
    """Which API key it came with, by a name that is not the key."""
    timing: Timing
    seconds: float
    """From its first line to the last byte of the answer."""


def log_request(request: Finished) -> None:
    """One line, with its parts as fields for formatters that know them (log_format.py)."""
    level = logging.DEBUG if request.route in QUIET else logging.INFO
    if not log.isEnabledFor(level):
        return
    timing = request.timing
    fields: dict[str, object] = {
        "id": request.id,
        "method": request.method,
        "route": request.route,
        "status": request.status,
        "client": request.client,
    }
    if request.tenant is not None:
        fields["tenant"] = request.tenant
    if timing.rows:
        fields |= {
            "rows": timing.rows,
            "tokens": timing.tokens,
            "computed_tokens": timing.computed_tokens,
            "cached_tokens": timing.cached_tokens,
        }
    for stage, seconds in timing.stages().items():
        fields[f"{stage}_ms"] = round(1000 * seconds, 3)
    fields["total_ms"] = round(1000 * request.seconds, 3)
    log.log(level, "request", extra={"fields": fields})
