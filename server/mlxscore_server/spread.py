"""What a request gives once for all its prompts, or in a list for each. Knows no HTTP, no MLX."""

import uuid
from typing import TypeVar, cast

from mlxscore_server.errors import InvalidRequest

T = TypeVar("T")


class Spread:
    """Spreads values over `count` prompts; None: there is one, and it is not in a list."""

    def __init__(self, count: int | None) -> None:
        self._single = count is None
        self._count = 1 if count is None else count

    def named(self, name: str, value: T | list[T] | None) -> list[tuple[T | None, str]]:
        """A value for each prompt, with the place where it came from."""
        if not isinstance(value, list):
            return [(value, name)] * self._count
        values = cast(list[T], value)
        if self._single:
            raise InvalidRequest(
                f"{name} is a list, but there is one prompt and no list of prompts", param=name
            )
        if len(values) != self._count:
            raise InvalidRequest(
                f"{name} has {len(values)} entries for {self._count} prompts; give one value, or one each",
                param=name,
            )
        return [(one, f"{name}[{i}]") for i, one in enumerate(values)]

    def of(self, name: str, value: T | list[T] | None, default: T) -> list[T]:
        """A value for each prompt, the default where none is given."""
        return [default if one is None else one for one, _ in self.named(name, value)]

    def ids(self, value: list[int] | list[list[int]] | None) -> list[tuple[list[int] | None, str]]:
        """As `named`: each value is a list itself."""
        name = "token_ids_logprob"
        if value and isinstance(value[0], list):
            return self.named(name, cast(list[list[int]], value))
        return [(cast("list[int] | None", value), name)] * self._count

    def rids(self, value: str | list[str] | None) -> list[str]:
        """A name for each prompt: the sender's, else a new one."""
        if isinstance(value, str) and not self._single:
            return [f"{value}_{i}" for i in range(self._count)]
        return [one or uuid.uuid4().hex for one, _ in self.named("rid", value)]
