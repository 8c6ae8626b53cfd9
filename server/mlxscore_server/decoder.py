"""Ids back to text: what was encoded comes back. Knows no MLX, no HTTP."""

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from mlxscore_server.pieces import Pieces

# What is tried to learn a tokenizer's ways: a small vocabulary (DNA, proteins) may lack a letter.
PROBES = ("a", "A", "0", ".")
_SPECIALS = 8


class Decoder:
    """Decodes ids, special tokens as text and every space as it is.

    Some tokenizers put a space before the first word after each special token too, and their own
    decoders take away only the text's first: with those, what lies between special tokens is decoded
    apart. Others put none where a space is already, and take one away all the same: it is put back
    where it can be known, before another. Safe to use from several threads at once.
    """

    def __init__(self, tokenizer: Any, pieces: Pieces, lock: threading.Lock) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._lock = lock  # for tokenizers in Python, which keep state
        self._pieces = pieces
        # Text is cut at these before it is encoded.
        self._added = frozenset(map(int, tokenizer.added_tokens_decoder))
        self._eats_space = False
        self._eats_space = self._backend is not None and self._loses_space()
        self._apart = self._backend is not None and self._needs_parts()

    def text(self, ids: Sequence[int]) -> str:
        """The ids' text; U+FFFD for bytes that are no UTF-8. Ids beyond the vocabulary have no text."""
        return "".join(self._parts(ids)) if self._apart else self._whole(ids)

    def _loses_space(self) -> bool:
        return any(self._whole(self._encode(f"  {probe}")) == f" {probe}" for probe in PROBES)

    def _needs_parts(self) -> bool:
        special = (t.content for t in self._tokenizer.added_tokens_decoder.values() if t.special)
        for text in (token + probe for token in islice(special, _SPECIALS) for probe in PROBES):
            ids = self._encode(text)
            if self._whole(ids) == text:
                return False
            if "".join(self._parts(ids)) == text:
                return True
        return False

    def _encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return found

    def _parts(self, ids: Sequence[int]) -> Iterator[str]:
        for is_added, run in groupby(ids, self._added.__contains__):
            part = list(run)
            yield "".join(map(self._pieces.text, part)) if is_added else self._whole(part)

    def _whole(self, ids: Sequence[int]) -> str:
        if self._backend is not None:
            # As a batch: alone, it would hold Python's lock all the time.
            (text,) = self._backend.decode_batch([ids], skip_special_tokens=False)
            return f" {text}" if self._eats_space and text.startswith(" ") else str(text)
        with self._lock:
            known = [i for i in ids if self._pieces.token(i) is not None]
            return str(
                self._tokenizer.decode(
                    known, skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            )
