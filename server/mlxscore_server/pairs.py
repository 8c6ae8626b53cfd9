"""Items to rows of ids: what stands before a continuation, and where it begins. Knows no MLX.

The rules, once:

* "joint" (lm-evaluation-harness): trailing whitespace of a context that is not blank moves to the
  continuation; both are encoded together; the continuation is what follows the context's own ids.
  Where one token spans the two, it is all that follows the two encodings' longest common prefix, and
  `merged_boundary` says so.
* "separate", and any item that mixes text and ids: the two are encoded apart.
* Special tokens are put before a text by us, so that none is ever doubled, and none after it: an EOS
  that a tokenizer appends is no part of the text.
* Ids are used as given. An empty context becomes the BOS id, else EOS.
* Messages become one text, as the model's chat template renders it. It stays as it is: its trailing
  whitespace is what the model was trained to answer after, so none moves; and the template writes its
  own special tokens, so none is added unless the caller asks.
* A whole text has no context: `whole_text` and `windows` say what becomes of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxscore_client.wire import Boundary, ScoreItem, Truncation
from mlxscore_server.chat import ChatOptions
from mlxscore_server.drafts import Draft, Texts, WholeDraft
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.row import Ids
from mlxscore_server.tokens import Encoder
from mlxscore_server.whole_text import EncodedText, encode_whole
from mlxscore_server.windows import Windowing


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

    @property
    def parts(self) -> list[EncodedPair]:
        """What becomes one row each."""
        return self.pairs


@dataclass(frozen=True)
class _Whole:
    """A pair before its length is looked at."""

    ids: Ids
    start: int
    merged: bool


def encode_items(
    encoder: Encoder,
    items: Sequence[ScoreItem],
    *,
    add_special_tokens: bool | None,
    boundary: Boundary,
    truncation: Truncation,
    windowing: Windowing | None = None,
    chat: ChatOptions | None = None,
) -> list[EncodedItem | EncodedText]:
    """Items to rows of ids. Raises InvalidRequest, which names the field and the limit.

    `add_special_tokens`: None and True put the tokenizer's own special tokens before a text
    (None is the tokenizer's default, and that is what True means to a tokenizer); False none. Before
    messages only True puts any. `chat` is for messages; None: an answer is begun after them.
    `windowing` is for whole texts; None: disjoint windows of the model's limit.
    """
    prefix = () if add_special_tokens is False else encoder.prefix_ids
    chat_prefix = encoder.prefix_ids if add_special_tokens else ()
    texts = Texts(encoder, chat or ChatOptions())
    drafts = [
        Draft(texts, item, f"items[{i}]", boundary)
        if item.whole is None
        else WholeDraft(texts, item.whole, f"items[{i}]")
        for i, item in enumerate(items)
    ]
    texts.encode()
    if windowing is None:
        windowing = Windowing.of(None, None, limit=encoder.max_model_len)
    return [
        encode_whole(encoder, draft.given, texts.ids(draft.source), windowing, draft.param)
        if isinstance(draft, WholeDraft)
        else _finish(encoder, draft, texts, chat_prefix if draft.is_chat else prefix, truncation)
        for draft in drafts
    ]


def _finish(
    encoder: Encoder,
    draft: Draft,
    texts: Texts,
    prefix: tuple[int, ...],
    truncation: Truncation,
) -> EncodedItem:
    pairs: list[EncodedPair] = []
    context_tokens = truncated = 0
    for j, (continuation, param) in enumerate(draft.continuations):
        whole = _join(encoder, draft, j, texts, prefix, param)
        if not j:
            context_tokens = whole.start
        cut = _cut(encoder, whole, truncation, param)
        truncated = max(truncated, cut)
        # Text goes through the same bound: a tokenizer may not fit the weights.
        encoder.check_bound(whole.ids, param)
        text, num_bytes = encoder.as_sent(continuation)
        pairs.append(
            EncodedPair(whole.ids[cut:], whole.start - cut, whole.merged, num_bytes, len(text))
        )
    return EncodedItem(context_tokens, truncated, pairs)


def _join(
    encoder: Encoder, draft: Draft, j: int, texts: Texts, prefix: tuple[int, ...], param: str
) -> _Whole:
    context, continuation = texts.ids(draft.context), texts.ids(draft.seconds[j])
    if isinstance(draft.context, str):
        context = encoder.with_specials(context, prefix)
    if not draft.joint:
        if not len(continuation):
            raise InvalidRequest(f"{param} encodes to no tokens at all", param=param)
        if not len(context):
            return _after_prefix(encoder, continuation, False, param)
        return _Whole(np.concatenate([context, continuation]), len(context), False)
    # Joint: `continuation` is the encoding of context and continuation together.
    whole = encoder.with_specials(continuation, prefix)
    shared = _common_prefix(whole, context)
    merged = shared < len(context)
    if shared == len(whole):
        if not merged:
            raise InvalidRequest(f"{param} adds no token to its context", param=param)
        shared -= 1
    if not shared:
        return _after_prefix(encoder, whole, merged, param)
    return _Whole(whole, shared, merged)


def _after_prefix(encoder: Encoder, continuation: Ids, merged: bool, param: str) -> _Whole:
    """A continuation with nothing before it: the BOS id, else EOS, takes the context's place.

    That is lm-evaluation-harness's prefix token. A continuation that begins with it has its own as
    the context: never two.
    """
    prefix_id = encoder.prefix_id
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


def _cut(encoder: Encoder, whole: _Whole, truncation: Truncation, param: str) -> int:
    """How many tokens to cut from the context's start; a BOS that we put there goes first.

    Raises InvalidRequest with both lengths where cutting is not allowed or cannot help.
    """
    limit, length = encoder.max_model_len, len(whole.ids)
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


def _common_prefix(a: Ids, b: Ids) -> int:
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if different.size else shorter
