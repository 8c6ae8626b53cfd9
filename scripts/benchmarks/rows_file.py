"""Rows and their scores as files between processes. Needs numpy only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[np.int32], int]
"""Ids, and where the scored ones begin: what a contestant sees of a row."""
Scores = list[NDArray[np.float32]]
"""For each row the logprobs of its scored tokens, or only their sum: (1,)."""


def write_rows(path: Path, rows: Sequence[Pair]) -> None:
    _write(path, [ids for ids, _ in rows], starts=np.array([start for _, start in rows]))


def read_rows(path: Path) -> list[Pair]:
    with np.load(path) as file:
        return list(zip(_parts(file), file["starts"].tolist(), strict=True))


def write_scores(path: Path, scores: Scores) -> None:
    _write(path, scores)


def read_scores(path: Path) -> Scores:
    with np.load(path) as file:
        return _parts(file)


def _write(path: Path, parts: Sequence[NDArray[Any]], **more: NDArray[Any]) -> None:
    np.savez(path, all=np.concatenate(parts), ends=np.cumsum([len(p) for p in parts]), **more)


def _parts(file: Any) -> list[NDArray[Any]]:
    return np.split(file["all"], file["ends"][:-1])
