"""lm-evaluation-harness's shape: pairs of (context, continuation), and a number and a flag for each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.inputs import TextOrIds, plain
from mlxscore_client.wire import ScoreResponse

_OF_ITEM = re.compile(r"items\[(\d+)\](?:\.continuations\[(\d+)\])?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Pairs:
    """Pairs as items: neighbours with the same context share one, so it is sent and read once."""

    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    starts: list[int] = field(default_factory=list[int])
    """Per item, the place of its first pair; the item's others follow it."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[TextOrIds, TextOrIds]]) -> "Pairs":
        """Raises InvalidRequestError where one is not a pair."""
        made = cls()
        for i, pair in enumerate(pairs):
            context, continuation = _two(i, pair)
            if not made.items or not _same(made.items[-1]["context"], context):
                made.items.append({"context": context, "continuations": []})
                made.starts.append(i)
            made.items[-1]["continuations"].append(continuation)
        return made

    def caller_path(self, path: str) -> str:
        """`items[1].continuations[2]` as, for instance, `pairs[7].continuation`."""
        found = _OF_ITEM.fullmatch(path)
        if found is None or int(found[1]) >= len(self.starts):
            return path
        start, which = self.starts[int(found[1])], found[2]
        if which is None:
            return f"pairs[{start}]{found[3]}"
        return f"pairs[{start + int(which)}].continuation{found[3]}"

    @staticmethod
    def read(response: ScoreResponse) -> list[tuple[float, bool]]:
        """(loglikelihood in nats, is_greedy) of each pair, in the caller's order."""
        return [(s.loglikelihood, s.is_greedy) for r in response.results for s in r.scores]


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, list) or not isinstance(other, list):
        return one == other
    # True == 1 == 1.0, but only 1 is a token id: the others are left for the wire to refuse.
    mine, others = cast(list[Any], one), cast(list[Any], other)
    return mine == others and [*map(type, mine)] == [*map(type, others)]


def _two(i: int, pair: Any) -> tuple[Any, Any]:
    # A text of two characters would unpack too.
    if not isinstance(pair, tuple | list) or len(cast(list[Any], pair)) != 2:
        param = f"pairs[{i}]"
        raise InvalidRequestError(f"{param}: must be a pair (context, continuation)", param=param)
    context, continuation = cast(list[Any], pair)
    return plain(context), plain(continuation)
