"""From what callers pass to wire types. What is wrong becomes an InvalidRequestError, unsent."""

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import ValidationError

from mlxscore_client import wire
from mlxscore_client.errors import InvalidRequestError


@runtime_checkable
class Array(Protocol):
    """A one-dimensional integer array of numpy, MLX or torch, none of which is imported here."""

    def tolist(self) -> Any: ...


TextOrIds = str | Sequence[int] | Array
"""A text, or token ids that are used verbatim."""


def score_request(
    items: Iterable[wire.ScoreItem | Mapping[str, Any]],
    options: Mapping[str, Any],
    caller_path: Callable[[str], str] = str,
) -> wire.ScoreRequest:
    """The whole call as one checked request, however many it will be sent as.

    `caller_path` turns a path in the request into one in the caller's arguments.
    """
    check_several(items)
    try:
        return wire.ScoreRequest(items=[_plain_item(item) for item in items], **options)
    except ValidationError as error:
        raise _invalid(error, caller_path) from error


def check_several(items: object) -> None:
    """Raise TypeError for what is one item, though it could be iterated over."""
    if isinstance(items, str | bytes | Mapping | wire.ScoreItem):
        kind = type(cast(object, items)).__name__
        raise TypeError(f"items must be a list of items, not one {kind}")


def stream_options(options: Mapping[str, Any]) -> wire.StreamOptions:
    """The options of a stream, checked."""
    try:
        return wire.StreamOptions(**options)
    except ValidationError as error:
        raise _invalid(error, str) from error


def stream_line(item: wire.ScoreItem | Mapping[str, Any]) -> bytes:
    """One item as a line, checked."""
    try:
        checked = wire.ScoreItem.model_validate(_plain_item(item))
    except ValidationError as error:
        raise _invalid(error, str) from error
    return checked.model_dump_json(exclude_defaults=True).encode() + b"\n"


def as_json(value: object) -> str:
    """As short as it can be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tokenize_request(fields: Mapping[str, Any], caller_path: Callable[[str], str] = str) -> str:
    """The body of `POST /tokenize`, checked, as JSON."""
    try:
        request = wire.TokenizeRequest(**fields)
    except ValidationError as error:
        raise _invalid(error, caller_path) from error
    return request.model_dump_json(include=set(fields))


def continuations(value: Iterable[TextOrIds]) -> list[TextOrIds]:
    """As a list; a lone text would otherwise be scored letter by letter."""
    if isinstance(value, str | bytes):
        raise TypeError(
            f"continuations must be a list of texts or ids, not a {type(value).__name__}: "
            "pass [continuation] for one"
        )
    return list(value)


def whole_texts(value: Iterable[TextOrIds]) -> list[dict[str, Any]]:
    """As items; a lone text would otherwise be scored letter by letter."""
    if isinstance(value, str | bytes):
        raise TypeError(
            f"texts must be a list of texts or ids, not a {type(value).__name__}: pass [text] for one"
        )
    items: list[dict[str, Any]] = []
    for i, given in enumerate(value):
        one = plain(given)
        if not isinstance(one, str | list):
            param = f"texts[{i}]"
            raise InvalidRequestError(
                f"{param}: must be a text or a list of token ids", param=param
            )
        items.append({"text" if isinstance(one, str) else "ids": one})
    return items


def plain(value: Any) -> Any:
    """Ids of any kind as a list of ints. What is neither text nor ids stays, to be refused."""
    if isinstance(value, Array):
        value = value.tolist()
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        return value
    return [_plain_id(one) for one in cast(Sequence[Any], value)]


def _plain_id(value: Any) -> Any:
    # numpy's integers have __index__, its floats do not; a bool is left for the wire to refuse.
    if isinstance(value, int) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _plain_item(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    fields = dict(cast(Mapping[str, Any], item))
    for name in ("context", "continuation", "ids"):
        if name in fields:
            fields[name] = plain(fields[name])
    messages = fields.get("messages")
    if isinstance(messages, Sequence) and not isinstance(messages, str | bytes | bytearray):
        fields["messages"] = [
            dict(cast(Mapping[str, Any], one)) if isinstance(one, Mapping) else one
            for one in cast(Sequence[Any], messages)
        ]
    several = fields.get("continuations")
    if isinstance(several, Array):
        several = several.tolist()
    if isinstance(several, Sequence) and not isinstance(several, str | bytes | bytearray):
        fields["continuations"] = [plain(one) for one in cast(Sequence[Any], several)]
    return fields


def _invalid(error: ValidationError, caller_path: Callable[[str], str]) -> InvalidRequestError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    path = _path(first["loc"])
    # What an item as a whole lacks has the item's path.
    param = caller_path(f"{path}.context" if first["type"] == "no_context" else path)
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    where = f"{param}: " if param else ""
    return InvalidRequestError(f"{where}{first['msg']}{others}", param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in wire.UNION_TAGS:
            path += f".{part}" if path else part
    return path
