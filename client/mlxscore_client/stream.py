"""A stream of items of any length as requests of bounded size, and their answers as one stream again.

Pure: neither sockets nor waiting. Between the items that have been taken from the caller and the results
that he has been given lie `MAX_AHEAD` at most, and so what is kept in memory does not grow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from mlxscore_client import inputs
from mlxscore_client.errors import (
    APIConnectionError,
    APIStatusError,
    BadRequestError,
    InternalServerError,
    InvalidRequestError,
    InvalidResponseError,
    ServerUnavailableError,
)
from mlxscore_client.wire import (
    ErrorBody,
    ErrorResponse,
    ScoreItem,
    StreamResult,
)

# What can end a stream that has begun; all else is said of one line.
_BY_TYPE: dict[str, tuple[type[APIStatusError], int]] = {
    "unavailable_error": (ServerUnavailableError, 503),
    "invalid_request_error": (BadRequestError, 408),
    "timeout_error": (InternalServerError, 504),
}

PATH, MEDIA_TYPE = "/score/stream", "application/x-ndjson"
MAX_REQUESTS = 4
"""Requests of one stream that are under way at a time: the server never waits for the next."""
MAX_ITEMS = 256
"""Items of one request. Its answers come one by one; more would only be lost with a connection."""
MAX_AHEAD = MAX_REQUESTS * MAX_ITEMS


@dataclass
class Batch:
    """Items of one request, and of those that follow it until all are answered."""

    unanswered: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By the place among the caller's items: lines."""
    size: int = 0
    """Bytes."""

    def send(self) -> "Sending":
        """What is unanswered as a body."""
        return Sending(self, list(self.unanswered), b"".join(self.unanswered.values()))


@dataclass
class Sending:
    """One request of a batch."""

    batch: Batch
    places: list[int]
    """The line's number in the body to the place among the caller's items."""
    content: bytes
    _part: bytes = b""

    def read(self, data: bytes) -> Iterator[StreamResult]:
        """Results in a piece of the answer, with the caller's indexes.

        Raises APIStatusError where the server says that it ends here, before its time, and
        InvalidResponseError where it is no answer to this request.
        """
        # Not httpx's lines: to those U+2028 in a text ends a line.
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield self._result(line)

    def end(self) -> None:
        """The answer is over. Raises APIConnectionError where it should not be."""
        if self.batch.unanswered:
            raise APIConnectionError(
                f"the answer ended with {len(self.batch.unanswered)} of {len(self.places)} items unanswered",
                retryable=True,
            )

    def _result(self, line: bytes) -> StreamResult:
        try:
            result = StreamResult.model_validate_json(line)
        except ValidationError:
            try:
                ended = ErrorResponse.model_validate_json(line).error
            except ValidationError:
                shown = line[:200].decode(errors="replace")
                raise InvalidResponseError(
                    f"{PATH} answered with a line that is no result: {shown}"
                ) from None
            raise _ended(ended) from None
        if (result.scores is None) == (result.error is None) or not (
            0 <= result.index < len(self.places)
            and self.batch.unanswered.pop(self.places[result.index], None) is not None
        ):
            raise InvalidResponseError(
                f"{PATH} answered item {result.index} of {len(self.places)} twice, or with neither or "
                "both of scores and error"
            )
        result.index = self.places[result.index]
        return result


class Batches:
    """Collects items into batches. What is wrong with an item is its result, not an error."""

    def __init__(self, options: Mapping[str, Any], max_bytes: int, max_items: int) -> None:
        """Raises InvalidRequestError, which names the option."""
        chosen = inputs.stream_options(options)
        given = chosen.model_dump(exclude={"ordered"}, exclude_defaults=True)
        self.params = {name: _query(value) for name, value in given.items()}
        self._max_bytes, self._max_items = max_bytes, min(max_items, MAX_ITEMS)
        self._taken = self._sent = 0
        self._batch = Batch()
        self._refused: list[StreamResult] = []

    def wanted(self, given: int) -> bool:
        """Whether another batch may be collected while so many results have been given out."""
        return self._taken + self._max_items - given <= MAX_AHEAD

    def add(self, item: ScoreItem | Mapping[str, Any]) -> bool:
        """Take one more item; whether that is enough for a batch."""
        index = self._taken
        self._taken += 1
        try:
            line = inputs.stream_line(item)
        except InvalidRequestError as error:
            self._refused.append(_refused(index, item, error))
        else:
            self._batch.unanswered[index] = line
            self._batch.size += len(line)
        return self._taken - self._sent >= self._max_items or self._batch.size >= self._max_bytes

    def batch(self) -> tuple[Batch, list[StreamResult]]:
        """What has been added since the last: what to send, and what is answered here already."""
        batch, refused = self._batch, self._refused
        self._batch, self._refused, self._sent = Batch(), [], self._taken
        return batch, refused


class Order:
    """Results in the order in which they are given out."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._early: dict[int, StreamResult] = {}
        self.given = 0
        """Results that have been given out."""

    def add(self, result: StreamResult) -> Iterator[StreamResult]:
        """What may be given out with this one."""
        if not self._ordered:
            self.given += 1
            yield result
            return
        self._early[result.index] = result
        while (following := self._early.pop(self.given, None)) is not None:
            self.given += 1
            yield following


def _ended(error: ErrorBody) -> APIStatusError:
    """What the server gave as its reason, as if it had answered with that status."""
    kind, status = _BY_TYPE.get(error.type, (InternalServerError, 500))
    return kind(
        error.message,
        status=status,
        type=error.type,
        param=error.param,
        code=error.code,
        retryable=kind is ServerUnavailableError,
    )


def _query(value: object) -> str:
    return value if isinstance(value, str) else inputs.as_json(value)


def _refused(index: int, item: object, error: InvalidRequestError) -> StreamResult:
    given = cast(Mapping[str, object], item).get("id") if isinstance(item, Mapping) else None
    body = ErrorBody(
        message=error.message, type="invalid_request_error", param=error.param, code="invalid_value"
    )
    return StreamResult(index=index, id=given if isinstance(given, str) else None, error=body)
