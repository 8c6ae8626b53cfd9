"""Clients of a server, in a process of their own: clients.py URL FILE NUMBER

Sends the bodies of a JSON file to /score over NUMBER connections and prints, as JSON, how long all of
it took and each request waited, seconds.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx


async def main(url: str, bodies: list[bytes], number: int) -> dict[str, object]:
    waits: list[float] = []
    limits = httpx.Limits(max_connections=number, max_keepalive_connections=number)
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        await asyncio.gather(*(client.get("/health") for _ in range(number)))
        waiting = iter(bodies)

        async def one_client() -> None:
            for body in waiting:
                started = time.perf_counter()
                answer = await client.post("/score", content=body, headers=headers)
                waits.append(time.perf_counter() - started)
                if answer.status_code != 200:
                    raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")

        started = time.perf_counter()
        await asyncio.gather(*(one_client() for _ in range(number)))
        return {"seconds": time.perf_counter() - started, "waits": waits}


if __name__ == "__main__":
    url, path, number = sys.argv[1:]
    texts = json.loads(Path(path).read_text(encoding="utf-8"))
    encoded = [json.dumps(body).encode() for body in texts]
    print(json.dumps(asyncio.run(main(url, encoded, int(number)))))
