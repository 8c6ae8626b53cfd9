"""What a stream of very many short lines takes in memory: the server's peak, and this process's, a client.

The model is made up; all else is real. Once with the client's `score_stream`, once as one request whose body
is made while its answer is read.
"""

import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlxscore_client import Client

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from steady_process import Steady


def items(count: int) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"context": "a", "continuation": f" {i}", "id": f"n{i}"}


def by_client(url: str, count: int) -> int:
    with Client(url) as client:
        return sum(result.scores is not None for result in client.score_stream(items(count)))


def in_one_request(url: str, count: int) -> int:
    """Lines answered with scores, by a client that reads and writes at the same time."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 80)) as sock:
        head = "POST /score/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(head.encode())

        def send() -> None:
            some: list[str] = []
            for i in range(count):
                some.append(f'{{"context":"a","continuation":" {i}","id":"n{i}"}}\n')
                if len(some) == 1000 or i == count - 1:
                    data = "".join(some).encode()
                    sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))
                    some.clear()
            sock.sendall(b"0\r\n\r\n")

        sender = threading.Thread(target=send)
        sender.start()
        answered = 0
        tail = b""
        while data := sock.recv(2**16):
            data = tail + data
            answered += data.count(b'"scores":')
            tail = data[-8:]  # one byte less than what is looked for
        sender.join()
        return answered


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for name, run in (("Client.score_stream", by_client), ("one request", in_one_request)):
        with Steady() as server:
            begun = time.monotonic()
            answered = run(server.url, count)
            seconds = time.monotonic() - begun
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            peak = int(status.partition("VmHWM:")[2].split()[0]) // 1024
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{name}: {answered} of {count} lines in {seconds:.0f} s, peak of the server {peak} MB, of this "
            f"process {own} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
