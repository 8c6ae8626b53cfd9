"""Token ids to exact bytes: what a token stands for in a text, also where it is part of a character."""

import json
import re
from typing import Any, Literal

Kind = Literal["byte-level", "sentencepiece", "other"]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece writes a space so
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_of_char()


class Pieces:
    """Bytes and text of single tokens. Ids beyond the tokenizer's vocabulary are empty.

    Exact for byte-level BPE and SentencePiece; any other kind gives what the tokenizer decodes the one
    id to (WordPiece: "##ing").
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._kind: Kind = _kind_of(tokenizer)
        # Added tokens stand for themselves. Not so SentencePiece's ordinary ones: Gemma lists its runs of
        # spaces as added tokens, written with U+2581 as in its vocabulary.
        self._literal: dict[int, str] = {
            int(i): token.content
            for i, token in tokenizer.added_tokens_decoder.items()
            if token.special or self._kind != "sentencepiece"
        }
        self._known: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}

    def piece(self, token_id: int) -> bytes:
        """The token's exact bytes; joined, a text's tokens give its UTF-8."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._make(token_id)
        return known

    def text(self, token_id: int) -> str:
        """The bytes as text, with U+FFFD where the token is only part of a character."""
        known = self._texts.get(token_id)
        if known is None:
            known = self._texts[token_id] = self.piece(token_id).decode("utf-8", "replace")
        return known

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None beyond that."""
        try:
            found: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        except (IndexError, KeyError):  # how Python tokenizers answer beyond their vocabulary
            return None
        return found

    def _make(self, token_id: int) -> bytes:
        if token_id in self._literal:
            return self._literal[token_id].encode("utf-8", "replace")
        token = self.token(token_id)
        if token is None:
            return b""
        if self._kind == "byte-level":
            return b"".join(
                bytes([_BYTE_OF_CHAR[char]]) if char in _BYTE_OF_CHAR else char.encode()
                for char in token
            )
        if self._kind == "sentencepiece":
            if byte := _BYTE_TOKEN.fullmatch(token):
                return bytes.fromhex(byte[1])
            return token.replace(_SPACE, " ").encode()
        return str(self._tokenizer.decode([token_id])).encode()


def _kind_of(tokenizer: Any) -> Kind:
    if hasattr(tokenizer, "sp_model"):  # SentencePiece's own library
        return "sentencepiece"
    parts: set[str] = set()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    for part in (getattr(backend, "decoder", None), getattr(backend, "pre_tokenizer", None)):
        if part is not None:
            _collect(json.loads(part.__getstate__()), parts)
    if "ByteLevel" in parts:
        return "byte-level"
    if {"Metaspace", "ByteFallback", _SPACE} & parts:
        return "sentencepiece"
    return "other"


def _collect(state: Any, parts: set[str]) -> None:
    """The types of a decoder and of its parts, and the strings that its Replace steps look for."""
    if isinstance(state, dict):
        for key, value in state.items():  # pyright: ignore[reportUnknownVariableType]
            if key in ("type", "String") and isinstance(value, str):
                parts.add(value)
            else:
                _collect(value, parts)
    elif isinstance(state, list):
        for value in state:  # pyright: ignore[reportUnknownVariableType]
            _collect(value, parts)
