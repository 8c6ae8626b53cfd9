"""What the sender of an item calls its parts: for errors. Knows no tokens, no HTTP, no MLX."""

from typing import NamedTuple, Protocol

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


class ItemNames(Protocol):
    """The parts of one item."""

    @property
    def context(self) -> str:
        """The path of what stands before the continuations; of a whole text, its own."""
        ...

    def continuation(self, j: int) -> Name:
        """By its place: there may be far too many to name them all."""
        ...


class ScoreNames(NamedTuple):
    """Those of an item of `/score`."""

    param: str
    """The item's own path; empty where it is all that was sent."""
    item: ScoreItem

    @property
    def context(self) -> str:
        if self.item.context is not None:
            return self._path("context")
        if self.item.messages is not None:
            return self._path("messages")
        return self._path("ids" if self.item.text is None else "text")

    def continuation(self, j: int) -> Name:
        one = self.item.continuations is None
        path = self._path("continuation" if one else f"continuations[{j}]")
        return Name(path, path)

    def _path(self, field: str) -> str:
        return f"{self.param}.{field}" if self.param else field
