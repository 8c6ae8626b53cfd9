"""What all scoring endpoints do: read the body, prepare rows, score them, write the answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from fastapi import Request, Response

from mlxscore_server.body import read_json
from mlxscore_server.disconnect import while_connected
from mlxscore_server.engine import Engine, Scored
from mlxscore_server.errors import (
    BodyTimeout,
    BodyTooLarge,
    InvalidRequest,
    MlxscoreError,
    NotReady,
    QueueFull,
    RequestExpired,
    ScoringFailed,
    WrongContentType,
)
from mlxscore_server.refusals import check_rows
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings
from mlxscore_server.terms import Terms
from mlxscore_server.timing import stage

# What any request for scores may end in, for the documentation.
SCORING_ERRORS: tuple[type[MlxscoreError], ...] = (
    InvalidRequest,
    BodyTimeout,
    BodyTooLarge,
    WrongContentType,
    QueueFull,
    ScoringFailed,
    NotReady,
    RequestExpired,
)

T = TypeVar("T")

# An answer of fewer numbers is written on the event loop: the hop to a thread would cost more.
_SMALL_ANSWER = 1000


class Prepared(Protocol):
    """A request that has been understood."""

    @property
    def rows(self) -> Sequence[Row]:
        """What is to be scored."""
        ...

    @property
    def numbers(self) -> int:
        """About how many numbers the answer holds: what writing it costs."""
        ...

    def to_json(self, scored: Scored) -> bytes:
        """The answer's body, from the scores of `rows` in order."""
        ...

    def param(self, row: int) -> str | None:
        """The path of the field that a row came from."""
        ...


Salted = tuple[Prepared, str | None]
"""What is to be scored, and the `cache_salt` of its request."""

Prepare = Callable[[bytearray, Loaded, Settings], Salted]
"""From a body to rows. Runs off the event loop: megabytes of text take seconds. Raises InvalidRequest."""


async def run(request: Request, prepare: Prepare) -> Response:
    """Answer a request for scores. All of it succeeds, or none of it."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    # No rows: 503 while loading, draining or after the end, before any of the body is read.
    await engine.score([])
    terms = Terms.of(request, settings)
    tenant = tenant_of(request, settings)
    async with terms.deadline():
        engine.room.check()  # so too a 429, where nothing would be let in
        with stage("read"):
            body = await read_json(request, engine, settings)
        with engine.room.place():
            understand = partial(_rows, prepare, body, engine.loaded, settings, tenant)
            content = await while_connected(request, _answer(engine, understand, terms))
    return Response(content, media_type="application/json")


def _rows(
    prepare: Prepare, body: bytearray, loaded: Loaded, settings: Settings, tenant: str | None
) -> tuple[Prepared, Sequence[Row]]:
    """A request that has been understood, and its rows under their salt. Off the event loop, as `Prepare`."""
    prepared, given = prepare(body, loaded, settings)
    check_rows(len(prepared.rows), settings.max_rows_per_request)
    salt = salt_of(tenant, given)
    return prepared, [replace(row, salt=salt) for row in prepared.rows] if salt else prepared.rows


def tenant_of(request: Request, settings: Settings) -> str | None:
    """Whose prefixes a request shares: those of its API key's name, or (None) everybody's."""
    return None if settings.share_prefix_cache_across_keys else request.state.tenant


def salt_of(tenant: str | None, given: str | None) -> bytes:
    """What rows share prefixes by: whose API key it was, and what the request says."""
    # No name of a key holds a zero byte: one key's salt is never another's.
    return (f"{tenant}\0" if tenant is not None else "").encode() + (given or "").encode()


async def _answer(
    engine: Engine, understand: Callable[[], tuple[Prepared, Sequence[Row]]], terms: Terms
) -> bytes:
    with stage("tokenise"):
        prepared, rows = await engine.encode(understand)
    try:
        scored = await engine.score(rows, caller=terms.caller, low=terms.low)
    except ScoringFailed as error:
        # Without a row it may have reached several callers, and stays as it is.
        if error.row is not None:
            error.param = prepared.param(error.row)
        raise
    with stage("respond"):
        return await written(engine, prepared.numbers, prepared.to_json, scored)


async def written(engine: Engine, numbers: int, write: Callable[[Scored], T], scored: Scored) -> T:
    """What `write` makes of the scores: about so many numbers, here or off the event loop."""
    if numbers < _SMALL_ANSWER:
        return write(scored)
    return await engine.encode(write, scored)
