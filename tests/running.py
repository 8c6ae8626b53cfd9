"""The real engine, its real thread and queue, around any model or fake scorer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded, Scorer
from mlxscore_server.settings import Settings

T = TypeVar("T")


def bare(scorer: Scorer) -> Loaded:
    """A loaded model of which only the scorer is used."""
    return Loaded(scorer, cast(Any, None), cast(Any, None))


def with_engine(
    load: Callable[[], Loaded],
    use: Callable[[Engine], Awaitable[T]],
    **settings: Any,
) -> T:
    """Start an engine, wait until it is ready, use it, drain and close it."""

    async def main() -> T:
        engine = Engine(Settings(**settings), load)
        engine.start()
        try:
            await engine.ready()
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(main())
