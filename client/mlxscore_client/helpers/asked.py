"""What helpers ask of the server: items of `POST /score`, with errors that name their own arguments."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mlxscore_client import calls
from mlxscore_client.calls import Job, Limits
from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.helpers.result import Conversation
from mlxscore_client.inputs import TextOrIds, plain
from mlxscore_client.wire import ScoreResponse

_ITEM = re.compile(r"items\[(\d+)\]\.?([a-z]*)(?:\[(\d+)\])?(.*)", re.DOTALL)

Name = Callable[[int, str, int | None], str]
"""An item's place, its field, and there the place in a list of continuations: the argument's path."""


def score(
    items: Sequence[Mapping[str, Any]], options: Mapping[str, Any], limits: Limits, name: Name
) -> Job[ScoreResponse]:
    """Items, with `name` for what errors call their parts."""

    def caller_path(path: str) -> str:
        found = _ITEM.fullmatch(path)
        if found is None:
            return path
        at, field, which, rest = int(found[1]), found[2], found[3], found[4]
        if field in ("context", "messages", "ids") and which is not None:
            return f"{name(at, field, None)}[{which}]{rest}"
        return name(at, field, None if which is None else int(which)) + rest

    return calls.score_items(items, options, limits, caller_path)


def context(given: TextOrIds | Conversation, name: str = "context") -> dict[str, Any]:
    """A text, ids or a conversation as the fields of an item that stand for it."""
    if is_conversation(given):
        return {"messages": [dict(message) for message in cast(Conversation, given)]}
    return {"context": text_or_ids(given, name)}


def text_or_ids(given: Any, name: str) -> str | list[int]:
    """A text or ids as they are sent. Raises InvalidRequestError, which names the argument."""
    one = plain(given)
    if not isinstance(one, str | list):
        raise InvalidRequestError(f"{name}: must be a text or a list of token ids", param=name)
    return cast(str | list[int], one)


def is_conversation(given: Any) -> bool:
    """Whether these are messages, and not ids or texts."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        return False
    return isinstance(cast(Sequence[Any], given)[0], Mapping)


def texts(given: Any, name: str) -> list[str]:
    """One text or many as a list. Raises InvalidRequestError."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes) or not hasattr(given, "__iter__"):
        raise InvalidRequestError(f"{name}: must be a text or a list of texts", param=name)
    found: list[Any] = list(given)
    for i, one in enumerate(found):
        if not isinstance(one, str):
            param = f"{name}[{i}]"
            raise InvalidRequestError(f"{param}: must be a text (string)", param=param)
    return found
