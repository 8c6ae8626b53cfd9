"""Many callers at a time, each with a small question: the server batches them by itself.

No batching of your own is needed: start all calls, let one client bound how many travel at once, and take the
answers as they come. `X-Priority: low` leaves the model to people who wait while this runs.

    python examples/many_callers.py --callers 200
"""

import argparse
import asyncio
import time

from mlxscore_client import AsyncClient

AT_ONCE = 64


async def ask(client: AsyncClient, a: int, b: int, turn: asyncio.Semaphore) -> bool:
    """Whether the model finds the right sum likelier than its neighbours."""
    answers = [f" {a + b + off}" for off in (0, -1, 1)]
    async with turn:
        ranked = await client.rank(f"{a} + {b} =", answers)
    return ranked[0].index == 0


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--callers", type=int, default=100)
    callers = parser.parse_args().callers

    turn = asyncio.Semaphore(AT_ONCE)
    started = time.perf_counter()
    async with AsyncClient(headers={"X-Priority": "low"}) as client:
        questions = (ask(client, 1 + i % 20, 1 + i // 20 % 20, turn) for i in range(callers))
        right = sum(await asyncio.gather(*questions))
    seconds = time.perf_counter() - started
    print(f"{right} of {callers} sums right; {callers / seconds:.0f} questions a second")


if __name__ == "__main__":
    asyncio.run(main())
