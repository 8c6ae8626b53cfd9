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

from mlxscore_client.wire import Boundary, ScoreItem, Truncation
from mlxscore_server.chat import ChatOptions
from mlxscore_server.drafts import Draft, Texts, WholeDraft
from mlxscore_server.joins import excess, join
from mlxscore_server.names import ItemNames, ScoreNames
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


def encode_items(
    encoder: Encoder,
    items: Sequence[ScoreItem],
    *,
    add_special_tokens: bool | None,
    boundary: Boundary,
    truncation: Truncation,
    windowing: Windowing | None = None,
    chat: ChatOptions | None = None,
    names: Sequence[ItemNames] | None = None,
    max_tokens: int | None = None,
) -> list[EncodedItem | EncodedText]:
    """Items to rows of ids. Raises InvalidRequest, which names the field and the limit.

    `add_special_tokens`: None and True put the tokenizer's own special tokens before a text
    (None is the tokenizer's default, and that is what True means to a tokenizer); False none. Before
    messages only True puts any. `chat` is for messages; None: an answer is begun after them.
    `windowing` is for whole texts; None: disjoint windows of the model's limit. `names` are what errors
    call the items' parts; None: as `/score` does. `max_tokens` (--max-queued-tokens) bounds what contexts
    and continuations make when each is put before each; None: no bound.
    """
    prefix = () if add_special_tokens is False else encoder.prefix_ids
    chat_prefix = encoder.prefix_ids if add_special_tokens else ()
    texts = Texts(encoder, chat or ChatOptions(), max_tokens)
    if names is None:
        names = [ScoreNames(f"items[{i}]", item) for i, item in enumerate(items)]
    drafts = [
        Draft(texts, item, named, boundary)
        if item.whole is None
        else WholeDraft(texts, item.whole, named.context)
        for item, named in zip(items, names, strict=True)
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
    for j, continuation in enumerate(draft.continuations):
        name = draft.names.continuation(j)
        joined = join(encoder, draft, j, texts, prefix, name)
        if not j:
            context_tokens = joined.start
        cut = excess(encoder, joined, truncation, name)
        truncated = max(truncated, cut)
        # Text goes through the same bound: a tokenizer may not fit the weights.
        encoder.check_bound(joined.ids, name.param, shown=name.shown)
        text, num_bytes = encoder.as_sent(continuation)
        pairs.append(
            EncodedPair(joined.ids[cut:], joined.start - cut, joined.merged, num_bytes, len(text))
        )
    return EncodedItem(context_tokens, truncated, pairs)
