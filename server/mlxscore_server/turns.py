"""Things of many owners, served by turns: the owners first, then each owner's things. Knows no MLX."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class Turns(Generic[K, T]):
    """Whoever has had a turn stands at the back. To add and to remove is quick, however many wait."""

    def __init__(self) -> None:
        # Dicts for their order: the first in is the next in turn.
        self._things: dict[K, dict[T, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._things)

    def add(self, owner: K, thing: T) -> None:
        """Put a thing at the back of its owner's; a new owner stands at the back too."""
        self._things.setdefault(owner, {})[thing] = None

    def remove(self, owner: K, thing: T) -> bool:
        """Take a thing away, wherever it stands; whether it was there."""
        things = self._things.get(owner, {})
        if thing not in things:
            return False
        del things[thing]
        if not things:
            del self._things[owner]
        return True

    def owners(self) -> list[K]:
        """Who has things, the next in turn first."""
        return list(self._things)

    def of(self, owner: K) -> list[T]:
        """An owner's things, the next in turn first."""
        return list(self._things.get(owner, ()))

    def all(self) -> list[T]:
        return [thing for things in self._things.values() for thing in things]

    def served(self, owner: K) -> None:
        """Put an owner at the back."""
        if things := self._things.pop(owner, None):
            self._things[owner] = things

    def clear(self) -> None:
        self._things.clear()
