"""Where each token stands in the text that it is part of, in characters. Knows no HTTP, no MLX."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from itertools import accumulate

from mlxscore_server.tokens import Encoder

_Decoder = getincrementaldecoder("utf-8")


def text_and_offsets(
    encoder: Encoder, sent: str | None, ids: Sequence[int], new: Sequence[int]
) -> tuple[str, list[int]]:
    """The text of a prompt and of what follows it, and how much of it comes before each token.

    `sent` is the prompt as it was sent, None where it came as ids: it is decoded then. Offsets never
    go down and never pass the end. A token that is not in the text (a BOS before a text that was sent
    without one, the space that SentencePiece puts before a first word) has no width; the parts of
    one character share its offset.
    """
    text, offsets = _decoded(encoder, [*ids, *new])
    if sent is None:
        return text, offsets
    end = offsets[len(ids)] if new else len(text)
    prompt, added = text[:end], text[end:]
    if not prompt.endswith(sent):
        # A tokenizer that changes what it reads (case, spaces, Unicode forms): only it knows.
        starts = encoder.text_offsets(sent)
        if starts is None:
            starts = [min(offset, len(sent)) for offset in offsets[: len(ids)]]
        before = [0] * (len(ids) - len(starts))
        return sent + added, [*before, *starts[: len(ids)], *(len(sent) for _ in new)]
    absent = len(prompt) - len(sent)
    return sent + added, [max(0, offset - absent) for offset in offsets]


def _decoded(encoder: Encoder, ids: Sequence[int]) -> tuple[str, list[int]]:
    texts = list(map(encoder.pieces.text, ids))
    text = "".join(texts)
    if "\N{REPLACEMENT CHARACTER}" not in text:  # each token is whole characters
        return text, list(accumulate(map(len, texts[:-1]), initial=0))
    decoder = _Decoder("replace")
    parts: list[str] = []
    offsets: list[int] = []
    length = 0
    for token_id in ids:
        offsets.append(length)
        part = decoder.decode(encoder.pieces.piece(token_id))
        parts.append(part)
        length += len(part)
    parts.append(decoder.decode(b"", final=True))
    return "".join(parts), offsets
