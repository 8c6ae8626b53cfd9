"""Items with their texts registered and their ids checked, so that all texts are encoded in one call.

Knows no MLX, no HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mlxscore_client.wire import Boundary, ScoreItem
from mlxscore_server.chat import ChatOptions
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.names import ItemNames
from mlxscore_server.refusals import Made
from mlxscore_server.row import Ids
from mlxscore_server.tokens import Encoder


class Texts:
    """The distinct texts of a request, encoded in one call: a shared context is encoded once."""

    def __init__(self, encoder: Encoder, chat: ChatOptions, max_tokens: int | None) -> None:
        self._encoder = encoder
        self._chat = chat
        self._made = Made(max_tokens)
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

    def make(self, context: str | Sequence[int], continuations: Sequence[Any], param: str) -> None:
        """Before each of the continuations is put after the context: may there be so much?"""
        self._made.add(len(continuations), len(context), sum(map(len, continuations)), param)

    def render(self, messages: Sequence[Mapping[str, Any]], param: str) -> str:
        return self._encoder.chat.render(messages, self._chat, param)

    def verbatim(self, ids: Sequence[int], param: str) -> Ids:
        return self._encoder.verbatim(ids, param)

    def encode(self) -> None:
        self._encoded = self._encoder.encode_texts(list(self._index))

    def ids(self, part: "str | Ids") -> Ids:
        return self._encoded[self._index[part]] if isinstance(part, str) else part


class Draft:
    """An item with its texts registered and its ids checked."""

    def __init__(self, texts: Texts, item: ScoreItem, names: ItemNames, boundary: Boundary) -> None:
        given = item.all_continuations()
        self.names, self.continuations = names, given
        self.is_chat = item.messages is not None
        param = names.context
        context = item.context if item.messages is None else texts.render(item.messages, param)
        assert context is not None, "this is a bug"
        texts.make(context, given, param)
        only_text = isinstance(context, str) and all(isinstance(c, str) for c in given)
        # An item whose continuations are of both kinds is encoded apart as a whole.
        self.joint = only_text and boundary == "joint" and context != ""
        moved = ""
        if self.joint and not self.is_chat and isinstance(context, str) and context.strip():
            kept = context.rstrip()
            moved, context = context[len(kept) :], kept
        self.context: str | Ids = (
            texts.add(context, param)
            if isinstance(context, str) and context
            # An empty text has no ids, whatever a tokenizer puts before a first word.
            else texts.verbatim(list[int]() if context == "" else context, param)
        )
        self.seconds: list[str | Ids] = []
        """What is encoded for each continuation: with the context in front where it is joint."""
        for j, continuation in enumerate(given):
            name = names.continuation(j)
            if not len(continuation):
                raise name.refused("is empty: there is nothing to score")
            if isinstance(continuation, str):
                texts_given = moved + continuation
                if self.joint and isinstance(context, str):
                    texts_given = context + texts_given
                self.seconds.append(texts.add(texts_given, name.param))
            else:
                self.seconds.append(texts.verbatim(continuation, name.param))


class WholeDraft:
    """A whole text, registered; or its ids, checked."""

    def __init__(self, texts: Texts, given: str | list[int], param: str) -> None:
        self.given = given
        self.param = param
        self.source: str | Ids = (
            texts.add(given, param) if isinstance(given, str) else texts.verbatim(given, param)
        )
