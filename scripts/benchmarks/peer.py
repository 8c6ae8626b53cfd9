"""A contestant's own process: passes over rows that the bench asks for, one line of JSON each.

Needs numpy only: a peer's environment holds the peer and nothing of this project.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows_file import Pair, Scores, read_rows, write_scores

Way = Callable[[list[Pair]], Scores | None]
"""How to score rows; None from those that only run the model."""


@dataclass
class Memory:
    """The device's memory as the peer's framework counts it."""

    reset: Callable[[], object] = lambda: None
    peak: Callable[[], int | None] = lambda: None
    """Bytes beyond the weights since `reset`."""
    release: Callable[[], object] = lambda: None
    """Give back what is only kept for reuse."""


@dataclass
class Peer:
    ways: dict[str, Way]
    """By the contestant's name."""
    notes: dict[str, str]
    """What each of them is, with versions."""
    memory: Memory = field(default_factory=Memory)


def serve(make: Callable[[dict[str, Any]], Peer]) -> None:
    """Make the peer from the options in argv[1] and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")

    try:
        peer = make(json.loads(sys.argv[1]))
    except Exception as error:
        traceback.print_exc()
        answer(error=_one_line(error))
        return
    answer(notes=peer.notes)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(**_one_pass(peer, asked) if "way" in asked else _release(peer))
        except Exception as error:
            traceback.print_exc()
            answer(error=_one_line(error))


def _one_pass(peer: Peer, asked: dict[str, Any]) -> dict[str, Any]:
    rows = read_rows(Path(asked["rows"]))
    way = peer.ways[asked["way"]]
    peer.memory.reset()
    started = time.perf_counter()
    scores = way(rows)
    seconds = time.perf_counter() - started
    if scores is not None:
        write_scores(Path(asked["scores"]), scores)
    return {"seconds": seconds, "peak_bytes": peer.memory.peak(), "scored": scores is not None}


def _release(peer: Peer) -> dict[str, Any]:
    peer.memory.release()
    return {}


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
