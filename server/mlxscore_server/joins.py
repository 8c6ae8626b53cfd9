"""A context and a continuation to one row of ids: by the rules that pairs.py states. Knows no MLX."""

from dataclasses import dataclass

import numpy as np

from mlxscore_client.wire import Truncation
from mlxscore_server.drafts import Draft, Texts
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.names import Name
from mlxscore_server.row import Ids
from mlxscore_server.tokens import Encoder


@dataclass(frozen=True)
class Joined:
    """A row before its length is looked at."""

    ids: Ids
    """(n,) int32."""
    start: int
    """Where the continuation begins; at least 1."""
    merged: bool
    """Whether one token spans the two."""


def join(
    encoder: Encoder, draft: Draft, j: int, texts: Texts, prefix: tuple[int, ...], name: Name
) -> Joined:
    """The context with its continuation `j`, and the special tokens `prefix` before a text."""
    context, continuation = texts.ids(draft.context), texts.ids(draft.seconds[j])
    if isinstance(draft.context, str):
        context = encoder.with_specials(context, prefix)
    if not draft.joint:
        if not len(continuation):
            raise name.refused("encodes to no tokens at all")
        if not len(context):
            return _after_prefix(encoder, continuation, False, name)
        return Joined(np.concatenate([context, continuation]), len(context), False)
    # Joint: `continuation` is the encoding of context and continuation together.
    whole = encoder.with_specials(continuation, prefix)
    shared = _common_prefix(whole, context)
    merged = shared < len(context)
    if shared == len(whole):
        if not merged:
            raise name.refused("adds no token to its context")
        shared -= 1
    if not shared:
        return _after_prefix(encoder, whole, merged, name)
    return Joined(whole, shared, merged)


def _after_prefix(encoder: Encoder, continuation: Ids, merged: bool, name: Name) -> Joined:
    """A continuation with nothing before it: the BOS id, else EOS, takes the context's place.

    That is lm-evaluation-harness's prefix token. A continuation that begins with it has its own as
    the context: never two.
    """
    prefix_id = encoder.prefix_id
    if prefix_id is None:
        raise InvalidRequest(
            f"the context of {name.shown} is empty and this model has neither a BOS nor an EOS "
            "token to stand in for it; give a context",
            param=name.param,
        )
    if int(continuation[0]) != prefix_id:
        prefixed = np.concatenate([np.array([prefix_id], np.int32), continuation])
        return Joined(prefixed, 1, merged)
    if len(continuation) == 1:
        raise name.refused(
            f"is only the token that stands for an empty context (id {prefix_id}): nothing is left to "
            "score"
        )
    return Joined(continuation, 1, merged)


def excess(encoder: Encoder, joined: Joined, truncation: Truncation, name: Name) -> int:
    """How many tokens to cut from the context's start; a BOS that we put there goes first.

    Raises InvalidRequest with both lengths where cutting is not allowed or cannot help.
    """
    limit, length = encoder.max_model_len, len(joined.ids)
    if limit is None or length <= limit:
        return 0
    continuation = length - joined.start
    if continuation + 1 > limit:
        raise name.refused(
            f"has {continuation} tokens, which with at least one token of context is more than the "
            f"model's limit of {limit} tokens",
            code="context_length_exceeded",
        )
    if truncation == "error":
        raise name.refused(
            f"and its context have {length} tokens ({joined.start} + {continuation}), the limit is "
            f'{limit}; truncation: "left" cuts the context\'s start',
            code="context_length_exceeded",
        )
    return length - limit


def _common_prefix(a: Ids, b: Ids) -> int:
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if different.size else shorter
