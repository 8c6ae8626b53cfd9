"""Records through a call that takes many at once; one that the server refuses fails alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from mlxscore_cli.records import Record
from mlxscore_client import (
    BadRequestError,
    InternalServerError,
    InvalidRequestError,
    MlxscoreError,
    PayloadTooLargeError,
)

Outcome = tuple[Record, Mapping[str, Any] | str]
"""A record with its result, or with what is wrong with it."""

Scorer = Callable[[Iterator[Record]], Iterable[Outcome]]
"""Outcomes in the order of the records, lazily."""


def in_batches(
    records: Iterator[Record],
    call: Callable[[Sequence[Record]], Sequence[Mapping[str, Any]]],
    size: int,
) -> Iterator[Outcome]:
    """Outcomes in order. `call` gives one result a record, or raises an error of the client."""
    while batch := list(islice(records, size)):
        good = iter(_called([record for record in batch if record.error is None], call))
        for record in batch:
            yield (record, record.error) if record.error is not None else next(good)


def _called(
    records: Sequence[Record], call: Callable[[Sequence[Record]], Sequence[Mapping[str, Any]]]
) -> Iterator[Outcome]:
    if not records:
        return
    try:
        found: Sequence[Mapping[str, Any] | str] = call(records)
    except MlxscoreError as error:
        if not _of_a_record(error):
            raise
        if len(records) == 1:
            found = [str(error)]
        else:
            half = len(records) // 2
            yield from _called(records[:half], call)
            yield from _called(records[half:], call)
            return
    yield from zip(records, found, strict=True)


def _of_a_record(error: MlxscoreError) -> bool:
    """Whether one of the records is to blame, and not the server or the way to it."""
    if isinstance(error, InternalServerError):
        return error.code is not None  # the model failed on a row; a proxy's page has no code
    return isinstance(error, BadRequestError | InvalidRequestError | PayloadTooLargeError)
