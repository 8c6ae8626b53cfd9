"""The loads: rows of random token ids, made from a seed. Knows no MLX."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlxscore_server.row import Ids, Row
from mlxscore_server.windows import Windowing

LONG = 512
WINDOW = 2048
"""Tokens that a window of the long text reads: what the server takes where a model states no limit."""


@dataclass(frozen=True)
class Load:
    name: str
    what: str
    rows: list[Row]

    @property
    def flat_tokens(self) -> int:
        return sum(row.num_inputs for row in self.rows)

    @property
    def scored_tokens(self) -> int:
        return sum(row.num_targets for row in self.rows)


class Maker:
    """Makes rows; `scale` is a factor on sizes, 1 for a GPU, of which a load keeps a least size."""

    def __init__(self, vocab_size: int, scale: float, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._scale = scale
        self.rng = np.random.default_rng(seed)

    def size(self, full: int, least: int) -> int:
        return max(min(full, least), round(full * self._scale))

    def ids(self, num_ids: int) -> Ids:
        return self.rng.integers(0, self._vocab_size, num_ids, dtype=np.int32)

    def row(self, num_inputs: int, wanted: int) -> Row:
        return Row(self.ids(num_inputs + 1), start=num_inputs + 1 - wanted)

    def after(self, context: Ids, num_ids: int) -> Row:
        """A continuation of `num_ids` random tokens."""
        return Row(np.concatenate([context, self.ids(num_ids)]), start=len(context))

    def between(self, low: int, high: int, count: int) -> list[int]:
        """`count` lengths, evenly spread and in random order, so that each scale has short and long."""
        spread = np.linspace(low, high, count).round().astype(int)
        return self.rng.permutation(spread).tolist()

    def uniform(self) -> tuple[str, list[Row]]:
        rows = [self.row(LONG, 32) for _ in range(self.size(32, 4))]
        return f"{len(rows)} x {LONG}, 32 wanted", rows

    def shorter(self) -> tuple[str, list[Row]]:
        num_rows = self.size(32, 4)
        rows = [*(self.row(LONG, 32) for _ in range(num_rows - 1)), self.row(LONG - 1, 32)]
        return f"{num_rows} x {LONG}, one a token shorter", rows

    def mixed(self) -> tuple[str, list[Row]]:
        rows = [self.row(n, 32) for n in self.between(64, 1024, self.size(128, 8))]
        return f"{len(rows)} of 64-1024, 32 wanted", rows

    def letters(self) -> tuple[str, list[Row]]:
        letters = self.rng.choice(self._vocab_size, 4, replace=False).astype(np.int32)
        what, contexts = self.few_shot()
        rows = [Row(np.append(c, letter), start=len(c)) for c in contexts for letter in letters]
        return f"{what} x 4 one-letter answers", rows

    def choices(self) -> tuple[str, list[Row]]:
        what, contexts = self.few_shot()
        rows = [self.after(c, n) for c in contexts for n in self.rng.integers(1, 7, 4).tolist()]
        return f"{what} x 4 answers of 1-6 tokens", rows

    def few_shot(self, num_questions: int | None = None) -> tuple[str, list[Ids]]:
        """Questions behind one preamble; what they are, and themselves."""
        preamble = self.ids(self.size(1500, 300))
        lengths = self.between(
            self.size(80, 30), self.size(150, 66), num_questions or self.size(32, 8)
        )
        contexts = [np.concatenate([preamble, self.ids(n)]) for n in lengths]
        return f"{len(preamble)}-token preamble, {len(contexts)} questions", contexts

    def documents(self) -> tuple[str, list[Row]]:
        query = self.ids(300)
        rows = [self.after(query, n) for n in self.between(30, 80, self.size(100, 24))]
        return f"one 300-token query x {len(rows)} documents of 30-80", rows

    def pairs(self) -> tuple[str, list[Row]]:
        num_pairs = self.size(16, 4)
        prompts = [self.ids(n) for n in self.between(200, 400, num_pairs)]
        answers = self.between(100, 300, 2 * num_pairs)
        rows = [self.after(prompts[i // 2], n) for i, n in enumerate(answers)]
        return f"{num_pairs} DPO pairs: prompts of 200-400, 2 answers of 100-300", rows

    def rolling(self) -> tuple[str, list[Row]]:
        ids = self.ids(self.size(100_000, 6_000))
        _, windows = Windowing.of(WINDOW, None, limit=None).cut(ids, 0, "text")
        rows = [Row(window.ids, window.start) for window in windows]
        return f"a text of {len(ids):,} tokens in windows of {WINDOW:,}", rows

    def echo(self) -> tuple[str, list[Row]]:
        rows = [self.row(LONG, LONG) for _ in range(self.size(32, 4))]
        return f"{len(rows)} x {LONG}, all positions wanted", rows

    def few(self, num_rows: int, length: int) -> tuple[str, list[Row]]:
        return f"{num_rows} x {length}, 1 wanted", [self.row(length, 1) for _ in range(num_rows)]


LOADS: dict[str, Callable[[Maker], tuple[str, list[Row]]]] = {
    "uniform": Maker.uniform,
    "shorter": Maker.shorter,
    "mixed": Maker.mixed,
    "letters": Maker.letters,
    "choices": Maker.choices,
    "documents": Maker.documents,
    "pairs": Maker.pairs,
    "rolling": Maker.rolling,
    "echo": Maker.echo,
    "1x512": lambda maker: maker.few(1, 512),
    "8x128": lambda maker: maker.few(8, 128),
    "32x32": lambda maker: maker.few(32, 32),
}
OTHERS = ("four-bit", "completions", "bulk", "http")
"""Measured apart from the loads above: peer_four_bit.py, completions.py, live.py."""
SMALL = ("1x512", "8x128", "32x32")
"""Too small to say anything about a GPU."""
QUICK = ("uniform", "choices", "documents", "8x128")


def chosen(on_gpu: bool, quick: bool) -> tuple[str, ...]:
    """The loads of a run that names none."""
    if quick:
        return QUICK
    return (*(name for name in LOADS if not on_gpu or name not in SMALL), *OTHERS)


def make(name: str, vocab_size: int, scale: float, seed: int = 0) -> Load:
    """The load, the same for the same arguments."""
    what, rows = LOADS[name](Maker(vocab_size, scale, seed))
    return Load(name, what, rows)
