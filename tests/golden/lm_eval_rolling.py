"""Makes lm_eval_rolling.json: what lm-evaluation-harness 0.4.13 itself cuts and computes.

Run where lm_eval is installed: `python tests/golden/lm_eval_rolling.py`.
"""

import json
from pathlib import Path

from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
from lm_eval.api.task import PerplexityTask
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

PREFIX = 7
TEXTS = ["one", " one two\n", "a\tb  c\u00a0d", "\n", "naïve 日本語 text 👍🏽", "x" * 40]


def tokens(count: int) -> list[int]:
    return list(range(100, 100 + count))


def windows() -> list[dict[str, object]]:
    """`context` is lm_eval's context_len; it makes windows disjoint where that is 1."""
    found: list[dict[str, object]] = []
    for size in (1, 2, 3, 5, 8):
        for context in range(1, size + 1, 2):
            for count in (1, 2, size, size + 1, 2 * size, 2 * size + 1, 3 * size - 1, 23):
                pairs = list(get_rolling_token_windows(tokens(count), PREFIX, size, context))
                cut = [make_disjoint_window(pair) for pair in pairs]
                found.append({"size": size, "context": context, "count": count, "windows": cut})
    return found


def figures() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for i, text in enumerate(TEXTS):
        loglikelihood = -3.25 * (i + 1)
        words, size = PerplexityTask.count_words(text), PerplexityTask.count_bytes(text)
        found.append(
            {
                "text": text,
                "loglikelihood": loglikelihood,
                "num_words": words,
                "num_bytes": size,
                "word_perplexity": weighted_perplexity([(loglikelihood, words)]),
                "byte_perplexity": weighted_perplexity([(loglikelihood, size)]),
                "bits_per_byte": bits_per_byte([(loglikelihood, size)]),
            }
        )
    return found


if __name__ == "__main__":
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"windows": windows(), "figures": figures()}) + "\n")
