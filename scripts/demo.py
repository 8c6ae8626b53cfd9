"""Starts a server with the default model, scores readable examples with the client, stops it."""

import math
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxscore_client import Client

QUESTIONS = {
    "The capital of France is": [" Paris", " London", " Berlin", " Madrid"],
    "The opposite of hot is": [" cold", " warm", " wet"],
    "A baby dog is called a": [" puppy", " kitten", " calf"],
    "Monday, Tuesday, Wednesday,": [" Thursday", " Sunday", " January"],
    "Two plus two equals": [" four", " five", " eleven"],
    "The sun rises in the": [" east", " west", " evening"],
    "The author of Romeo and Juliet is William": [" Shakespeare", " Wordsworth", " Tell"],
    "She poured the hot tea into a": [" cup", " sock", " library"],
}
MINIMAL_PAIRS = [  # (acceptable, not acceptable): one grammatical feature apart
    (
        "The keys to the old cabinet are on the table.",
        "The keys to the old cabinet is on the table.",
    ),
    ("The boys saw themselves in the mirror.", "The boys saw himself in the mirror."),
    ("Nobody has ever been there.", "Everybody has ever been there."),
]
SENTENCE = "The old dog buried its bone in the middle of the parliament."

START_SECONDS = 170  # fetching and converting the model included
STOP_SECONDS = 30


def main() -> None:
    # A signal ends the demo as an exception does, so that the server is stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


def run() -> None:
    started = time.perf_counter()
    with server() as url, Client(url) as client:
        print(f"\nServer ready at {url} after {time.perf_counter() - started:.0f} s\n")
        questions(client)
        minimal_pairs(client)
        surprisal(client)
    print("Server stopped. To start one yourself: .venv/bin/mlxscore-server")


def questions(client: Client) -> None:
    print("Which answer does the model find likely? (each alone, and among those given)\n")
    print(f"  {'answer':<14} {'loglikelihood':>13} {'probability':>12} {'of these':>9}  greedy")
    for context, answers in QUESTIONS.items():
        scores = client.score(context, answers)
        total = sum(math.exp(score.loglikelihood) for score in scores)
        print(f"{context} ...")
        for answer, score in zip(answers, scores, strict=True):
            probability = math.exp(score.loglikelihood)
            print(
                f"  {answer:<14} {score.loglikelihood:>13.3f} {probability:>12.5f} "
                f"{probability / total:>9.1%}  {'yes' if score.is_greedy else ''}".rstrip()
            )
    print()


def minimal_pairs(client: Client) -> None:
    print("Which of two sentences? (whole sentences, no context; the better one should be first)\n")
    for pair in MINIMAL_PAIRS:
        good, bad = client.score("", list(pair))
        verdict = "right" if good.loglikelihood > bad.loglikelihood else "wrong"
        for sentence, score in zip(pair, (good, bad), strict=True):
            print(f"  {score.loglikelihood:>9.3f}  {sentence}")
        print(f"  {verdict:>9}  by {abs(good.loglikelihood - bad.loglikelihood):.3f} nats\n")


def surprisal(client: Client) -> None:
    (score,) = client.score("", [SENTENCE], return_tokens=True)
    tokens = score.tokens or []
    print("How surprising is each token? (bits; rank 1 is the model's own first choice)\n")
    print(f"  {'token':<14} {'rank':>6} {'bits':>6}")
    for token in tokens:
        bits = -token.logprob / math.log(2)
        print(f"  {token.text:<14} {token.rank:>6} {bits:>6.1f}  {'#' * round(2 * bits)}".rstrip())
    bits = -score.loglikelihood / math.log(2)
    print(f"  {len(tokens)} tokens, {bits:.1f} bits, {bits / len(SENTENCE):.2f} a character\n")


@contextmanager
def server() -> Iterator[str]:
    """The URL of a running, loaded server, which is stopped at the end."""
    command = [str(Path(sys.executable).parent / "mlxscore-server"), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    output = Output(process)
    try:
        url = output.url(START_SECONDS)
        if url is None or not loaded(url, process):
            sys.exit("demo: the server did not start; what it printed is above")
        yield url
    except (Exception, SystemExit):
        stop(process)
        print(output.text(), file=sys.stderr)
        raise
    finally:
        code = stop(process)
    if code != 0:
        sys.exit(f"{output.text()}\ndemo: the server ended with exit code {code}")


def stop(process: subprocess.Popen[str]) -> int:
    """SIGTERM, as a supervisor would; the exit code, which a clean stop makes 0."""
    process.terminate()
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Output:
    """Reads what the server prints, so that its pipe never fills, and finds its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: list[str] = []
        self._process = process
        self._url: str | None = None
        self._known = threading.Event()  # the address, or that there will be none
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def url(self, timeout: float) -> str | None:
        self._known.wait(timeout)
        return self._url

    def text(self) -> str:
        """All of it, once the server has ended."""
        self._thread.join(5)
        return "".join(self._lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:[1-9]\d*", line)
            if found and self._url is None:
                self._url = found[0]
                self._known.set()
        self._known.set()


def loaded(url: str, process: subprocess.Popen[str]) -> bool:
    """Wait until /health answers 200; False if the server ends before or takes too long."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    print("Waiting for the model (the first time it is fetched: 93 MB) ...", flush=True)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with direct.open(f"{url}/health", timeout=10):
                return True
        except (urllib.error.URLError, OSError):  # 503 while it loads
            pass
        try:
            process.wait(0.2)
            return False
        except subprocess.TimeoutExpired:
            continue
    return False


if __name__ == "__main__":
    main()
