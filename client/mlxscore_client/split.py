"""One long list of items as several requests of bounded size, and their answers as one again.

A row is one context with one continuation, or one whole text. An item is kept whole where it fits;
one with too many continuations is cut into runs of them, each with the context.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlxscore_client.errors import InvalidResponseError
from mlxscore_client.wire import ScoreItem, ScoreRequest, ScoreResponse, ScoreResult, Usage

_IN_BODY = re.compile(r"items\[(\d+)\](?:\.continuations\[(\d+)\])?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """An item, or a run of its continuations."""

    item: int
    """Its place among the caller's items."""
    first: int
    """The first continuation's place in the item."""
    rows: int
    json: bytes
    """As it stands in a body."""


@dataclass(frozen=True)
class Body:
    """One request's body, and what it holds."""

    parts: Sequence[Part]
    json: bytes

    def caller_path(self, path: str) -> str:
        """A path in this body as one in the caller's list: `items[0]` may be his `items[700]`."""
        found = _IN_BODY.fullmatch(path)
        if found is None or int(found[1]) >= len(self.parts):
            return path
        part = self.parts[int(found[1])]
        which = "" if found[2] is None else f".continuations[{part.first + int(found[2])}]"
        return f"items[{part.item}]{which}{found[3]}"


def split(request: ScoreRequest, *, max_rows: int, max_bytes: int) -> Iterator[Body]:
    """Bodies in order, each made when it is asked for.

    A body has more than `max_bytes` bytes only where a single row has.
    """
    # Options at their default are left out: an older server may not know a newer one.
    options = request.model_dump(exclude={"items"}, exclude_defaults=True)
    tail = b"]" + b"".join(b',"%b":%b' % (name.encode(), _json(options[name])) for name in options)
    head, tail = b'{"items":[', tail + b"}"
    room = max_bytes - len(head) - len(tail)

    def body() -> Body:
        return Body(tuple(parts), head + b",".join(part.json for part in parts) + tail)

    parts: list[Part] = []
    rows = size = 0
    for part in _parts(request.items, max_rows, room):
        if parts and (rows + part.rows > max_rows or size + len(part.json) + 1 > room):
            yield body()
            parts.clear()
            rows = size = 0
        parts.append(part)
        rows += part.rows
        size += len(part.json) + 1  # the comma
    if parts:
        yield body()


def _parts(items: Iterable[ScoreItem], max_rows: int, room: int) -> Iterator[Part]:
    for i, item in enumerate(items):
        tail = b"}" if item.id is None else b',"id":' + _json(item.id) + b"}"
        if item.whole is not None:
            head = b'{"text":' if item.ids is None else b'{"ids":'
            yield Part(i, 0, 1, head + _json(item.whole) + tail)
            continue
        head = (
            b'{"context":' + _json(item.context)
            if item.messages is None
            else b'{"messages":' + _json(item.messages)
        )
        if item.continuation is not None:
            one = _json(item.continuation)
            yield Part(i, 0, 1, head + b',"continuation":' + one + tail)
            continue
        head, tail = head + b',"continuations":[', b"]" + tail
        # Where the context alone is over the bound nothing can keep it, and the context should
        # at least not be sent once per continuation.
        left = room - len(head) - len(tail)
        for first, run in _runs(item.all_continuations(), max_rows, left if left > 0 else room):
            yield Part(i, first, len(run), head + b",".join(run) + tail)


def _runs(values: list[Any], max_rows: int, max_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    first, run, size = 0, list[bytes](), 0
    for value in values:
        encoded = _json(value)
        if run and (len(run) == max_rows or size + len(encoded) + 1 > max_bytes):
            yield first, run
            first, run, size = first + len(run), [], 0
        run.append(encoded)
        size += len(encoded) + 1  # the comma
    yield first, run


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Answer:
    """One request's answer, and what the request held."""

    parts: Sequence[Part]
    response: ScoreResponse


def read(body: Body, content: bytes) -> Answer:
    """The answer to a body. Raises ValueError if it is not one, or not to this."""
    response = ScoreResponse.model_validate_json(content)
    if [result.index for result in response.results] != list(range(len(body.parts))):
        raise ValueError(f"not the results of {len(body.parts)} items in order")
    for i, (part, result) in enumerate(zip(body.parts, response.results, strict=True)):
        if [score.index for score in result.scores] != list(range(part.rows)):
            raise ValueError(f"results[{i}] has not the {part.rows} scores that were asked for")
    return Answer(body.parts, response)


def join(answers: Sequence[Answer]) -> ScoreResponse:
    """Answers, in the order of their requests, as if one request had been sent.

    `id` and `created` are the first's; usage is the sum; where replicas differ in their
    `system_fingerprint`, all are named, with `+` between.
    """
    responses = [answer.response for answer in answers]
    first = responses[0]
    if len(responses) == 1:
        return first
    if other := next((r.model for r in responses if r.model != first.model), None):
        raise InvalidResponseError(
            f"the server changed its model from {first.model!r} to {other!r} within one call; "
            "say which one you want (`model`)"
        )
    results: list[ScoreResult] = []
    for answer in answers:
        for part, result in zip(answer.parts, answer.response.results, strict=True):
            if part.first:
                _extend(results[-1], result, part.first)
            else:
                results.append(result.model_copy(update={"index": part.item}))
    return ScoreResponse(
        id=first.id,
        created=first.created,
        model=first.model,
        system_fingerprint="+".join(dict.fromkeys(r.system_fingerprint for r in responses)),
        results=results,
        usage=Usage(
            prompt_tokens=sum(r.usage.prompt_tokens for r in responses),
            total_tokens=sum(r.usage.total_tokens for r in responses),
            computed_tokens=sum(r.usage.computed_tokens for r in responses),
            cached_tokens=sum(r.usage.cached_tokens for r in responses),
        ),
    )


def _extend(result: ScoreResult, more: ScoreResult, first: int) -> None:
    """Add a later run of the same item's continuations."""
    result.scores += [s.model_copy(update={"index": first + s.index}) for s in more.scores]
    result.truncated_tokens = max(result.truncated_tokens, more.truncated_tokens)
