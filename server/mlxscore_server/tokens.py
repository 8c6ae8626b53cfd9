"""Text to ids: BOS, boundary, truncation. Knows no MLX, no HTTP.

The rules, once:

* "joint" (lm-evaluation-harness): trailing whitespace of a context that is not blank moves to the
  continuation; both are encoded together; the continuation is what follows the context's own ids.
  Where one token spans the two, it is all that follows the two encodings' longest common prefix, and
  `merged_boundary` says so.
* "separate", and any item that mixes text and ids: the two are encoded apart.
* Special tokens are put before a text by us, so that none is ever doubled, and none after it: an EOS
  that a tokenizer appends is no part of the text.
* Ids are used as given. An empty context becomes the BOS id, else EOS.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mlxscore_client.wire import Boundary, ScoreItem, Truncation
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.pieces import Pieces
from mlxscore_server.row import Ids

_LIMIT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "model_max_length",
)
_NO_LIMIT = 10**9  # tokenizers state "no limit" as about 1e30
_PROBES = ("a", "A", "0", ".")  # a small vocabulary (DNA, proteins) may lack some


@dataclass(frozen=True)
class EncodedPair:
    """One context + continuation."""

    ids: Ids
    """(n,) int32."""
    start: int
    """Where the continuation begins; at least 1."""
    merged_boundary: bool
    num_bytes: int
    """UTF-8 bytes of the continuation as sent."""
    num_chars: int


@dataclass(frozen=True)
class EncodedItem:
    """One item: a pair for each of its continuations."""

    context_tokens: int
    """Of the first pair, before truncation."""
    truncated_tokens: int
    """The most that was cut from any pair's context."""
    pairs: list[EncodedPair]


@dataclass(frozen=True)
class _Whole:
    """A pair before its length is looked at."""

    ids: Ids
    start: int
    merged: bool


class Encoder:
    """Encodes items with a model's tokenizer. Safe to use from several threads at once.

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
        # The attributes exist but are None where a tokenizer has no such token.
        self.bos_token_id: int | None = self._tokenizer.bos_token_id
        self.eos_token_id: int | None = self._tokenizer.eos_token_id
        self.prefix_ids: tuple[int, ...] = self._default_prefix()
        """What the tokenizer puts before a text by default."""

    @property
    def adds_bos(self) -> bool:
        """Whether a text gets the BOS by default."""
        return self.bos_token_id is not None and self.bos_token_id in self.prefix_ids

    def _default_prefix(self) -> tuple[int, ...]:
        for probe in _PROBES:
            plain: list[int] = self._tokenizer.encode(probe, add_special_tokens=False)
            if not plain:
                continue
            full: list[int] = self._tokenizer.encode(probe, add_special_tokens=True)
            for start in range(len(full) - len(plain) + 1):
                if full[start : start + len(plain)] == plain:
                    return tuple(full[:start])
        return ()

    def encode_items(
        self,
        items: Sequence[ScoreItem],
        *,
        add_special_tokens: bool | None,
        boundary: Boundary,
        truncation: Truncation,
    ) -> list[EncodedItem]:
        """Items to rows of ids. Raises InvalidRequest, which names the field and the limit.

        `add_special_tokens`: None and True put the tokenizer's own special tokens before a text
        (None is the tokenizer's default, and that is what True means to a tokenizer); False none.
        """
        prefix = () if add_special_tokens is False else self.prefix_ids
        texts = _Texts(self)
        drafts = [_Draft(texts, item, f"items[{i}]", boundary) for i, item in enumerate(items)]
        texts.encode()
        return [self._finish(draft, texts, prefix, truncation) for draft in drafts]

    def _finish(
        self, draft: "_Draft", texts: "_Texts", prefix: tuple[int, ...], truncation: Truncation
    ) -> EncodedItem:
        pairs: list[EncodedPair] = []
        context_tokens = truncated = 0
        for j, (continuation, param) in enumerate(draft.continuations):
            whole = self._join(draft, j, texts, prefix, param)
            if not j:
                context_tokens = whole.start
            cut = self._cut(whole, truncation, param)
            truncated = max(truncated, cut)
            # Text goes through the same bound: a tokenizer may not fit the weights.
            self._check_bound(whole.ids, param)
            as_bytes = (
                continuation.encode()
                if isinstance(continuation, str)
                else b"".join(map(self.pieces.piece, continuation))
            )
            num_chars = len(
                continuation if isinstance(continuation, str) else as_bytes.decode(errors="replace")
            )
            pairs.append(
                EncodedPair(
                    whole.ids[cut:], whole.start - cut, whole.merged, len(as_bytes), num_chars
                )
            )
        return EncodedItem(context_tokens, truncated, pairs)

    def _join(
        self, draft: "_Draft", j: int, texts: "_Texts", prefix: tuple[int, ...], param: str
    ) -> _Whole:
        context, continuation = texts.ids(draft.context), texts.ids(draft.seconds[j])
        if isinstance(draft.context, str):
            context = self._with_specials(context, prefix)
        if not draft.joint:
            if not len(continuation):
                raise InvalidRequest(f"{param} encodes to no tokens at all", param=param)
            if not len(context):
                return self._after_prefix(continuation, False, param)
            return _Whole(np.concatenate([context, continuation]), len(context), False)
        # Joint: `continuation` is the encoding of context and continuation together.
        whole = self._with_specials(continuation, prefix)
        shared = _common_prefix(whole, context)
        merged = shared < len(context)
        if shared == len(whole):
            if not merged:
                raise InvalidRequest(f"{param} adds no token to its context", param=param)
            shared -= 1
        if not shared:
            return self._after_prefix(whole, merged, param)
        return _Whole(whole, shared, merged)

    def _with_specials(self, ids: Ids, prefix: tuple[int, ...]) -> Ids:
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

    def _after_prefix(self, continuation: Ids, merged: bool, param: str) -> _Whole:
        """A continuation with nothing before it: the BOS id, else EOS, takes the context's place.

        That is lm-evaluation-harness's prefix token. A continuation that begins with it has its own as
        the context: never two.
        """
        prefix_id = self.eos_token_id if self.bos_token_id is None else self.bos_token_id
        if prefix_id is None:
            raise InvalidRequest(
                f"the context of {param} is empty and this model has neither a BOS nor an EOS "
                "token to stand in for it; give a context",
                param=param,
            )
        if int(continuation[0]) != prefix_id:
            prefixed = np.concatenate([np.array([prefix_id], np.int32), continuation])
            return _Whole(prefixed, 1, merged)
        if len(continuation) == 1:
            raise InvalidRequest(
                f"{param} is only the token that stands for an empty context (id {prefix_id}): "
                "nothing is left to score",
                param=param,
            )
        return _Whole(continuation, 1, merged)

    def _cut(self, whole: _Whole, truncation: Truncation, param: str) -> int:
        """How many tokens to cut from the context's start; a BOS that we put there goes first.

        Raises InvalidRequest with both lengths where cutting is not allowed or cannot help.
        """
        limit, length = self.max_model_len, len(whole.ids)
        if limit is None or length <= limit:
            return 0
        continuation = length - whole.start
        if continuation + 1 > limit:
            raise InvalidRequest(
                f"{param} has {continuation} tokens, which with at least one token of context is more "
                f"than the model's limit of {limit} tokens",
                param=param,
                code="context_length_exceeded",
            )
        if truncation == "error":
            raise InvalidRequest(
                f"{param} and its context have {length} tokens ({whole.start} + {continuation}), the "
                f'limit is {limit}; truncation: "left" cuts the context\'s start',
                param=param,
                code="context_length_exceeded",
            )
        return length - limit

    def _check_bound(self, ids: Ids, param: str) -> None:
        if int(ids.max()) >= self.num_embeddings:
            raise InvalidRequest(
                f"{param} holds token id {int(ids.max())}; the model has {self.num_embeddings} tokens "
                f"(ids 0 to {self.num_embeddings - 1})",
                param=param,
            )

    def verbatim(self, ids: Sequence[int], param: str) -> Ids:
        """Ids as given, (n,) int32; raises InvalidRequest where one is outside the embedding."""
        try:
            array = np.array(ids, np.int64)
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
        return [np.array(ids, np.int32) for ids in found]


class _Texts:
    """The distinct texts of a request, encoded in one call: a shared context is encoded once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._index: dict[str, int] = {}
        self._encoded: list[Ids] = []

    def add(self, text: str, param: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{param} holds a lone surrogate, which no text can hold", param=param
            ) from None
        self._index.setdefault(text, len(self._index))
        return text

    def verbatim(self, ids: Sequence[int], param: str) -> Ids:
        return self._encoder.verbatim(ids, param)

    def encode(self) -> None:
        self._encoded = self._encoder.encode_texts(list(self._index))

    def ids(self, part: "str | Ids") -> Ids:
        return self._encoded[self._index[part]] if isinstance(part, str) else part


class _Draft:
    """An item with its texts registered and its ids checked."""

    def __init__(self, texts: _Texts, item: ScoreItem, param: str, boundary: Boundary) -> None:
        given = item.all_continuations()
        names = (
            [f"{param}.continuation"]
            if item.continuations is None
            else [f"{param}.continuations[{j}]" for j in range(len(given))]
        )
        self.continuations = list(zip(given, names, strict=True))
        only_text = isinstance(item.context, str) and all(isinstance(c, str) for c in given)
        context: str | list[int] = item.context
        # An item whose continuations are of both kinds is encoded apart as a whole.
        self.joint = only_text and boundary == "joint" and context != ""
        moved = ""
        if self.joint and isinstance(context, str) and context.strip():
            kept = context.rstrip()
            moved, context = context[len(kept) :], kept
        self.context: str | Ids = (
            texts.add(context, f"{param}.context")
            if isinstance(context, str) and context
            # An empty text has no ids, whatever a tokenizer puts before a first word.
            else texts.verbatim(list[int]() if context == "" else context, f"{param}.context")
        )
        self.seconds: list[str | Ids] = []
        """What is encoded for each continuation: with the context in front where it is joint."""
        for continuation, name in self.continuations:
            if not len(continuation):
                _empty(name)
            if isinstance(continuation, str):
                texts_given = moved + continuation
                if self.joint and isinstance(context, str):
                    texts_given = context + texts_given
                self.seconds.append(texts.add(texts_given, name))
            else:
                self.seconds.append(texts.verbatim(continuation, name))


def _empty(param: str) -> NoReturn:
    raise InvalidRequest(f"{param} is empty: there is nothing to score", param=param)


def _common_prefix(a: Ids, b: Ids) -> int:
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if different.size else shorter


def limit_from(config: Mapping[str, Any], tokenizer: Any) -> int | None:
    """The longest row that a model states for itself, in tokens; None where it states none."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if not isinstance(part, Mapping):
            continue
        for key in _LIMIT_KEYS:
            value: Any = part.get(key)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            if isinstance(value, int) and 0 < value < _NO_LIMIT:
                return value
    stated: Any = getattr(tokenizer, "model_max_length", None)
    return int(stated) if isinstance(stated, int) and 0 < stated < _NO_LIMIT else None
