"""A text that is scored from its first token on: its windows, its size, its perplexities.

Knows no HTTP, no MLX. Definitions are lm-evaluation-harness's (`word_perplexity`, `byte_perplexity`,
`bits_per_byte` of one document).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlxscore_server.errors import InvalidRequest
from mlxscore_server.row import Ids
from mlxscore_server.tokens import Encoder
from mlxscore_server.windows import Window, Windowing

_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class EncodedText:
    """One text, ready to be scored."""

    context_tokens: int
    """1 where the prefix token was put before it; 0 where its own first token is context only."""
    windows: list[Window]
    num_bytes: int
    """UTF-8 bytes of the text as sent; where it came as ids, of what they decode to."""
    num_chars: int
    num_words: int
    """Pieces between runs of white space; an empty one counts where the text begins or ends so."""

    truncated_tokens = 0
    """Windows read a text of any length."""

    @property
    def parts(self) -> list[Window]:
        """What becomes one row each."""
        return self.windows

    def figures(self, loglikelihood: float, num_tokens: int) -> dict[str, float | None]:
        """What `loglikelihood` (nats) of `num_tokens` scored tokens means per token, word and byte.

        None where it is more than a float64 holds, or there are no bytes.
        """
        nats = -loglikelihood
        return {
            "bits_per_byte": nats / self.num_bytes / math.log(2) if self.num_bytes else None,
            "token_perplexity": _exp(nats, num_tokens),
            "word_perplexity": _exp(nats, self.num_words),
            "byte_perplexity": _exp(nats, self.num_bytes),
        }


def encode_whole(
    encoder: Encoder, given: str | Sequence[int], ids: Ids, windowing: Windowing, param: str
) -> EncodedText:
    """A text, as sent and as its ids without special tokens. Raises InvalidRequest."""
    if not len(ids):
        raise InvalidRequest(f"{param} encodes to no tokens at all", param=param)
    encoder.check_bound(ids, param)
    added, windows = windowing.cut(ids, encoder.prefix_id, param)
    text, num_bytes = encoder.as_sent(given)
    return EncodedText(
        context_tokens=added,
        windows=windows,
        num_bytes=num_bytes,
        num_chars=len(text),
        # Counted one by one: a list of all words of a long text is many times its size.
        num_words=1 + sum(1 for _ in _WHITE_SPACE.finditer(text)),
    )


def _exp(nats: float, count: int) -> float | None:
    try:
        return math.exp(nats / count)
    except (OverflowError, ZeroDivisionError):
        return None
