"""The fixed loads: rows of random token ids. Knows no MLX."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mlxscore_server.row import Row

LONG = 512


@dataclass(frozen=True)
class Load:
    name: str
    what: str
    rows: list[Row]
    of_one: list[Row] = field(default_factory=list[Row])
    """The same questions with one choice each, for the load of choices."""

    @property
    def flat_tokens(self) -> int:
        return sum(row.num_inputs for row in self.rows)


def all_loads(vocab_size: int, scale: float, *, with_shorter: bool) -> Iterator[Load]:
    rng = np.random.default_rng(0)

    def row(num_inputs: int, wanted: int) -> Row:
        ids = rng.integers(0, vocab_size, num_inputs + 1, dtype=np.int32)
        return Row(ids, start=num_inputs + 1 - wanted)

    num_rows = max(2, round(32 * scale))
    equal = [row(LONG, 32) for _ in range(num_rows)]
    yield Load("A", f"{num_rows} x {LONG}, 32 wanted", equal)
    if with_shorter:
        shorter = [*equal[:-1], row(LONG - 1, 32)]
        yield Load("A'", f"{num_rows} x {LONG}, one a token shorter", shorter)
    num_rows = max(4, round(64 * scale))
    # Evenly spread, so that each scale has short and long rows; in random order.
    lengths = rng.permutation(np.linspace(16, LONG, num_rows).round().astype(int))
    mixed = [row(int(n), 16) for n in lengths]
    yield Load("B", f"{num_rows} of 16-{LONG}, 16 wanted", mixed)
    choices = rng.choice(vocab_size, 4, replace=False).astype(np.int32)
    questions = [rng.integers(0, vocab_size, n, dtype=np.int32) for n in rng.integers(90, 111, 16)]
    asked = [[Row(np.append(q, c), start=len(q)) for c in choices] for q in questions]
    yield Load(
        "C",
        "16 questions x 4 letters",
        [row for rows in asked for row in rows],
        [rows[0] for rows in asked],
    )


def echo(num_rows: int, wanted: int, vocab_size: int) -> list[Row]:
    """Rows of LONG inputs, the last `wanted` of which are scored."""
    ids = np.random.default_rng(1).integers(0, vocab_size, (num_rows, LONG + 1), dtype=np.int32)
    return [Row(row, start=LONG + 1 - wanted) for row in ids]
