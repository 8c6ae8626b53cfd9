"""What the sender of an item calls its parts: for errors. Knows no tokens, no HTTP, no MLX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mlxscore_client.wire import ScoreItem
from mlxscore_server.errors import InvalidRequest


class Name(NamedTuple):
    """One part of an item."""

    param: str
    """The path of the field that it came in."""
    shown: str
    """What a message calls it."""

    def refused(self, why: str, *, code: str | None = None) -> InvalidRequest:
        """An error that begins with the part's name."""
        return InvalidRequest(f"{self.shown} {why}", param=self.param, code=code)


@dataclass(frozen=True)
class ItemNames:
    """The parts of one item."""

    context: str
    """The path of what stands before the continuations; of a whole text, its own."""
    continuation: Callable[[int], Name]
    """By its place: there may be far too many to name them all."""

    @staticmethod
    def of(item: ScoreItem, param: str) -> "ItemNames":
        """Those of an item of `/score`, whose own path is `param`."""
        contexts = {
            "context": item.context,
            "messages": item.messages,
            "text": item.text,
            "ids": item.ids,
        }
        field = next(name for name, value in contexts.items() if value is not None)
        one = item.continuations is None

        def continuation(j: int) -> Name:
            path = f"{param}.continuation" if one else f"{param}.continuations[{j}]"
            return Name(path, path)

        return ItemNames(f"{param}.{field}", continuation)
