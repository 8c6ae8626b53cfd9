"""Query and items to what stands before their labels. Knows no labels, no HTTP, no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from mlxscore_client.wire import LabelRequest
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.refusals import Made
from mlxscore_server.row import Ids
from mlxscore_server.tokens import Encoder


@dataclass(frozen=True)
class Context:
    """What stands before the labels."""

    given: str | list[int]
    """A text may join with a label that follows it; ids are used as given."""
    param: str
    """The path of the field that it came from."""


def label_contexts(
    encoder: Encoder, request: LabelRequest, *, max_tokens: int | None = None
) -> list[Context]:
    """Query with each item. Raises InvalidRequest where one is text and the other ids.

    `max_tokens` (--max-queued-tokens) bounds what they make together; None: no bound.
    """
    query, items = request.query, request.items
    names = ["items"] if isinstance(items, str) else [f"items[{i}]" for i in range(len(items))]
    listed = [items] if isinstance(items, str) else items
    Made(max_tokens).add(len(listed), len(query), sum(map(len, listed)), "query")
    if isinstance(query, str):
        texts = [item if isinstance(item, str) else _mixed(names[0]) for item in listed]
        return _of_texts(encoder, request, query, texts, names)
    verbatim = encoder.verbatim(query, "query").tolist()
    found: list[Context] = []
    for item, name in zip(listed, names, strict=True):
        if isinstance(item, str):
            _mixed(name)
        ids = encoder.verbatim(item, name).tolist()
        found.append(Context(ids + verbatim if request.item_first else verbatim + ids, name))
    return found


def _of_texts(
    encoder: Encoder, request: LabelRequest, query: str, items: Sequence[str], names: Sequence[str]
) -> list[Context]:
    if request.tokenization == "joint":
        return [
            Context(item + query if request.item_first else query + item, name)
            for item, name in zip(items, names, strict=True)
        ]
    prefix = encoder.prefix_ids if request.add_special_tokens else ()
    first, *others = encoder.encode_texts([query, *items])
    found: list[Context] = []
    for item, name in zip(others, names, strict=True):
        whole: Ids = np.concatenate([item, first] if request.item_first else [first, item])
        ids = encoder.with_specials(whole, prefix)
        if len(ids):
            encoder.check_bound(ids, name)
        found.append(Context(ids.tolist(), name))
    return found


def _mixed(param: str) -> NoReturn:
    raise InvalidRequest(
        f"query and {param} must be of one kind: both texts, or both token ids", param=param
    )
