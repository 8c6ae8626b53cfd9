"""Text to ids with a model's tokenizer: special tokens, bounds. Knows no MLX, no HTTP."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlxscore_server.chat import Chat
from mlxscore_server.decoder import PROBES, Decoder
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.pieces import Pieces
from mlxscore_server.row import Ids
from mlxscore_server.tokenizer_info import tokenizer_info

_LIMIT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "model_max_length",
)
# Ids that become an array at once.
_PIECE = 100_000
_NO_LIMIT = 10**9  # tokenizers state "no limit" as about 1e30

Integer = TypeVar("Integer", np.int32, np.int64)


class Encoder:
    """Encodes texts with a model's tokenizer. Safe to use from several threads at once.

    `num_embeddings` bounds every id; `max_model_len` bounds a row: context and continuation together
    may be exactly that long (the model reads one less: the last id is only ever a target).
    """

    def __init__(self, tokenizer: Any, *, num_embeddings: int, max_model_len: int | None) -> None:
        # mlx-lm wraps the tokenizer for its streaming detokenizers.
        inner = getattr(tokenizer, "_tokenizer", None)
        self._tokenizer: Any = inner if hasattr(inner, "bos_token_id") else tokenizer
        self._backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        # For tokenizers in Python, which keep state. Rust's are only read, so that a short text need not
        # wait until a huge one of another caller is encoded.
        self._lock = threading.Lock()
        if self._backend is not None:
            # A tokenizer.json may bring these along. Set once here and never again: changing them
            # while another thread encodes is an error ("Already borrowed").
            self._backend.no_truncation()
            self._backend.no_padding()
        self.num_embeddings = num_embeddings
        self.max_model_len = max_model_len
        self.pieces = Pieces(self._tokenizer)
        self.chat = Chat(self._tokenizer)
        self._decoder = Decoder(self._tokenizer, self.pieces, self._lock)
        # The attributes exist but are None where a tokenizer has no such token.
        self.bos_token_id: int | None = self._tokenizer.bos_token_id
        self.eos_token_id: int | None = self._tokenizer.eos_token_id
        self.prefix_ids: tuple[int, ...] = self._default_prefix()
        """What the tokenizer puts before a text by default."""
        self._space_ids: Ids | None = None

    @property
    def adds_bos(self) -> bool:
        """Whether a text gets the BOS by default."""
        return self.bos_token_id is not None and self.bos_token_id in self.prefix_ids

    @property
    def prefix_id(self) -> int | None:
        """What stands for an empty context: BOS, else EOS (lm-evaluation-harness's prefix token)."""
        return self.eos_token_id if self.bos_token_id is None else self.bos_token_id

    @property
    def largest_text_id(self) -> int:
        """The largest id that plain text can become. Added tokens do not count: some models' tokenizers
        have one for images, say, that the weights of the text model alone have no row for."""
        vocabulary: dict[str, int] = (
            self._tokenizer.get_vocab()
            if self._backend is None
            else self._backend.get_vocab(with_added_tokens=False)
        )
        return max(vocabulary.values(), default=-1)

    @property
    def space_ids(self) -> Ids | None:
        """The ids of all tokens that begin with a space, (n,) int32, always the same array; None where
        there are none."""
        with self._lock:
            # Looked for when first asked: a vocabulary takes a good part of a second.
            if self._space_ids is None:
                piece = self.pieces.piece
                found = [i for i in range(self.num_embeddings) if piece(i).startswith(b" ")]
                self._space_ids = np.array(found, np.int32)
            return self._space_ids if len(self._space_ids) else None

    @cached_property
    def info(self) -> dict[str, Any]:
        """The tokenizer's configuration as plain JSON."""
        stated = _stated_limit(self._tokenizer)
        return tokenizer_info(
            self._tokenizer,
            chat_template=self.chat.template,
            adds_bos=self.adds_bos,
            max_length=self.max_model_len if stated is None else stated,
        )

    def _default_prefix(self) -> tuple[int, ...]:
        for probe in PROBES:
            plain: list[int] = self._tokenizer.encode(probe, add_special_tokens=False)
            if not plain:
                continue
            full: list[int] = self._tokenizer.encode(probe, add_special_tokens=True)
            for start in range(len(full) - len(plain) + 1):
                if full[start : start + len(plain)] == plain:
                    return tuple(full[:start])
        return ()

    def with_specials(self, ids: Ids, prefix: tuple[int, ...]) -> Ids:
        """Special tokens before a text's ids, unless the text brings its own BOS."""
        begins_with = tuple(ids[: len(prefix)].tolist())
        has_bos = len(ids) > 0 and int(ids[0]) == self.bos_token_id
        if (
            not prefix
            or not len(ids)
            or begins_with == prefix
            or (has_bos and self.bos_token_id in prefix)
        ):
            return ids
        return np.concatenate([np.array(prefix, np.int32), ids])

    def text_offsets(self, text: str) -> list[int] | None:
        """For each of a text's ids the characters before it, as the tokenizer itself counts them.

        None where it does not: tokenizers in Python.
        """
        if self._backend is None:
            return None
        # As a batch: alone, it would hold Python's lock all the time.
        (encoded,) = self._backend.encode_batch([text], add_special_tokens=False)
        return [start for start, _ in encoded.offsets]

    def check_bound(self, ids: Ids, param: str, *, shown: str | None = None) -> None:
        """Raise InvalidRequest where a text's ids are outside the embedding: the tokenizer does not fit.

        `shown`: what the message calls the field, where that is not its path.
        """
        if int(ids.max()) >= self.num_embeddings:
            raise InvalidRequest(
                f"{shown or param} holds token id {int(ids.max())}; the model has {self.num_embeddings} "
                f"tokens (ids 0 to {self.num_embeddings - 1})",
                param=param,
            )

    def verbatim(self, ids: Sequence[int], param: str) -> Ids:
        """Ids as given, (n,) int32; raises InvalidRequest where one is outside the embedding."""
        try:
            array = _array(ids, np.int64)
        except OverflowError:
            array = np.array([min(max(i, -1), 2**62) for i in ids], np.int64)
        bad = np.flatnonzero((array < 0) | (array >= self.num_embeddings))
        if bad.size:
            j = int(bad[0])
            raise InvalidRequest(
                f"{param}[{j}] is token id {ids[j]}; the model has {self.num_embeddings} tokens "
                f"(ids 0 to {self.num_embeddings - 1})",
                param=f"{param}[{j}]",
            )
        return array.astype(np.int32)

    def encode_texts(self, texts: Sequence[str]) -> list[Ids]:
        """Each text's ids, (n,) int32, without special tokens, in one call that runs in parallel."""
        found: Iterable[list[int]]
        if self._backend is not None:
            encode: Any = getattr(self._backend, "encode_batch_fast", self._backend.encode_batch)
            found = (e.ids for e in encode(texts, add_special_tokens=False))
        else:
            one: Any = self._tokenizer.encode
            with self._lock:
                # Not verbose: a text longer than the model is ours to report.
                found = [one(text, add_special_tokens=False, verbose=False) for text in texts]
        return [_array(ids, np.int32) for ids in found]

    def encode_prompts(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Ids]:
        """Each text's ids, (n,) int32, with the tokenizer's special tokens before it, never two BOS; an
        empty text has those alone."""
        encoded = self.encode_texts(texts)
        if not add_special_tokens:
            return encoded
        alone = np.array(self.prefix_ids, np.int32)
        return [self.with_specials(ids, self.prefix_ids) if len(ids) else alone for ids in encoded]

    def as_sent(self, given: str | Sequence[int]) -> tuple[str, int]:
        """A text as it came, or what ids decode to; and its UTF-8 bytes."""
        if isinstance(given, str):
            return given, len(given.encode())
        joined = b"".join(map(self.pieces.piece, given))
        return joined.decode(errors="replace"), len(joined)

    def decode(self, ids: Ids) -> str:
        """The text that ids stand for: special tokens as text, all spaces kept."""
        return self._decoder.text(ids.tolist())

    def token_strs(self, ids: Ids) -> list[str]:
        """Tokens as the vocabulary writes them: "Ġworld", "▁world"."""
        found: list[str] = self._tokenizer.convert_ids_to_tokens(ids.tolist())
        return found


def _array(ids: Sequence[int], kind: type[Integer]) -> NDArray[Integer]:
    """A list as an array, in pieces: Python's lock is held for a piece, and millions take a while."""
    if len(ids) <= _PIECE:
        return np.array(ids, kind)
    pieces = (ids[at : at + _PIECE] for at in range(0, len(ids), _PIECE))
    return np.concatenate([np.array(piece, kind) for piece in pieces])


def limit_from(config: Mapping[str, Any], tokenizer: Any) -> int | None:
    """The longest row that a model states for itself, in tokens; None where it states none."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if not isinstance(part, Mapping):
            continue
        for key in _LIMIT_KEYS:
            value: Any = part.get(key)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            if isinstance(value, int) and 0 < value < _NO_LIMIT:
                return value
    return _stated_limit(tokenizer)


def _stated_limit(tokenizer: Any) -> int | None:
    stated: Any = getattr(tokenizer, "model_max_length", None)
    return int(stated) if isinstance(stated, int) and 0 < stated < _NO_LIMIT else None
