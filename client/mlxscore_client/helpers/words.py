"""Tokens to words by white space, and what a word's probability is where tokens bring the space before it.

Where a token that begins a word holds the space before it (byte-level BPE, SentencePiece), the tokens
of a word say that it has begun, but not that it has ended: the next token might go on with it. Pimentel
and Meister (2024, "How to Compute the Probability of a Word") and Oh and Schuler (2024, "Leading
Whitespaces of Language Models' Subword Vocabulary Pose a Confound for Calculating Word Probabilities")
move the space to the word that it ends: with B(i) the probability that a token that begins with a
space comes at position i,

    log P(word) = sum of its tokens' logprobs - log B(first) + log B(one after its last)

minicons calls it `bow_correction`, and so does this. As there, the text's first token loses no B (it is
known that a word begins there), and where no token with a space follows (a line break), none is gained.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Word:
    """A word, and which tokens it takes: those of the white space before it too."""

    text: str
    first: int
    last: int
    """One beyond its last token."""


def words(tokens: Sequence[bytes]) -> list[Word]:
    """Words of what the tokens' bytes say together; every token belongs to one, if there are any.

    White space belongs to the word after it, at the end to the last. Words that one token spans are
    one word.
    """
    # Bytes that are no UTF-8 become lone surrogates, one each: places in the bytes stay known.
    text = b"".join(tokens).decode("utf-8", "surrogateescape")
    found: list[Word] = []
    token, begins, byte, char = 0, 0, 0, 0  # the token that is looked at, and the byte it begins at
    for match in _WORD.finditer(text):
        byte += _size(text[char : match.start()])
        end = byte + _size(match[0])
        while begins + len(tokens[token]) <= byte:
            begins += len(tokens[token])
            token += 1
        first = token
        while token < len(tokens) and begins + len(tokens[token]) < end:
            begins += len(tokens[token])
            token += 1
        said = match[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if found and first < found[-1].last:
            found[-1] = Word(f"{found[-1].text} {said}", found[-1].first, token + 1)
        else:
            found.append(Word(said, found[-1].last if found else 0, token + 1))
        byte, char = end, match.end()
    if found:
        found[-1] = Word(found[-1].text, found[-1].first, len(tokens))
    return found


def corrected(
    tokens: Sequence[bytes], logprobs: Sequence[float], spaces: Sequence[float]
) -> list[float]:
    """(n,) logprobs with the space moved to the word before it, nats; of a word they add up to its own.

    `tokens` and `logprobs` (n,); `spaces` (n + 1,) is log B at each token, and after the last.
    """
    n = len(tokens)
    # Whether a space comes at position i: what ends a word. After the text one is taken to come.
    space = [token.startswith(b" ") for token in tokens] + [True]
    return [
        logprobs[i]
        + (spaces[i + 1] if space[i + 1] else 0.0)
        - (spaces[i] if space[i] and i > 0 else 0.0)
        for i in range(n)
    ]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
