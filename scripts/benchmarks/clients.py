"""Clients of a server, in a process of their own: clients.py HOST PORT FILE NUMBER

Sends the bodies of a JSON file to /score over NUMBER connections and prints, as JSON, how long all of
it took and each request waited, seconds. Speaks HTTP by itself: a client library of 64 connections in
one process takes several times what the server does for a request, and would be what is measured.
"""

import asyncio
import json
import sys
import time
from pathlib import Path


async def main(host: str, port: int, requests: list[bytes], number: int) -> dict[str, object]:
    waits: list[float] = []
    waiting = iter(requests)
    connections = [await asyncio.open_connection(host, port, limit=2**24) for _ in range(number)]

    async def one_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for request in waiting:
            started = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status, *lines = head.decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            answer = await reader.readexactly(int(headers["content-length"]))
            waits.append(time.perf_counter() - started)
            if status.split()[1] != "200":
                raise RuntimeError(f"{status}: {answer[:300]!r}")
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(one_client(*connection) for connection in connections))
    return {"seconds": time.perf_counter() - started, "waits": waits}


def request(host: str, port: int, body: bytes) -> bytes:
    return (
        f"POST /score HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


if __name__ == "__main__":
    host, port, path, number = sys.argv[1:]
    bodies = json.loads(Path(path).read_text(encoding="utf-8"))
    requests = [request(host, int(port), json.dumps(body).encode()) for body in bodies]
    print(json.dumps(asyncio.run(main(host, int(port), requests, int(number)))))
