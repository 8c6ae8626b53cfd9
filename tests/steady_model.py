"""A model by formula: what `steady_server` answers, for whoever wants to know beforehand."""

from collections.abc import Sequence

RAISE = b"\x03raise\x03"
"""The model raises on a row that holds these bytes."""
BOS = 256
_PRIME = 8191


def logprobs(ids: Sequence[int], start: int, *, next_token: bool = False) -> list[float]:
    """Of `ids[start:]`, each by all ids up to and with it; exact in float32. With `next_token`,
    one more, of the model's own first choice (id 0) after them."""
    state, found = 0, list[float]()
    for place, token in enumerate([*ids, 0] if next_token else ids):
        state = (state * 31 + token + 1) % _PRIME
        if place >= start:
            found.append(-state / 1024)
    return found
