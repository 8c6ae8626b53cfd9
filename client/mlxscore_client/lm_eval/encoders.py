"""Texts to token ids for lm_eval: with a tokenizer on this machine, or by the server's `/tokenize`.

`add_special_tokens` None: as `add_bos_token` says, and without that as the tokenizer does by default.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from mlxscore_client.client import Client

_BLOCK = 256  # texts; what a tokenizer says of them besides ids takes a hundred bytes a token
_PROBE = "Straße 12: the quick brown fox\n\tjumps, doesn't it?"


class LocalEncoder:
    """A tokenizer of transformers, called as lm_eval's `hf` calls it."""

    def __init__(
        self, name: str, *, add_bos_token: bool | None, revision: str, trust_remote_code: bool
    ) -> None:
        from transformers import AutoTokenizer

        given = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code, **given
        )
        self._add_bos_token = add_bos_token
        self._prefix: str | None = None

    def set_prefix(self, token_id: int | None) -> None:
        """A text that begins with this token as text brings its own special tokens."""
        self._prefix = None if token_id is None else self.tokenizer.decode(token_id)

    def encode(self, texts: Sequence[str], add_special_tokens: bool | None) -> Iterator[list[int]]:
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            has_own = [add_special_tokens is None and self._begins(text) for text in block]
            kinds: dict[bool, list[str]] = {True: [], False: []}
            for text, own in zip(block, has_own, strict=True):
                kinds[own].append(text)
            with_own = iter(self._encode(kinds[True], False))
            others = iter(self._encode(kinds[False], add_special_tokens))
            for own in has_own:
                yield next(with_own if own else others)

    def _begins(self, text: str) -> bool:
        return self._prefix is not None and text.startswith(self._prefix)

    def _encode(self, texts: list[str], add_special_tokens: bool | None) -> list[list[int]]:
        if not texts:
            return []
        said = self._add_bos_token if add_special_tokens is None else add_special_tokens
        given = {} if said is None else {"add_special_tokens": said}
        # Not verbose: a text longer than the model is cut by us.
        return self.tokenizer(texts, return_attention_mask=False, verbose=False, **given).input_ids

    def compare(self, client: Client) -> None:
        """Raise ValueError unless the server reads a text as this tokenizer does."""
        (here,) = self._encode([_PROBE], False)
        there = client.tokenize(_PROBE, add_special_tokens=False)
        if here != there:
            raise ValueError(
                f"tokenizer={self.tokenizer.name_or_path} is not the served model's tokenizer: "
                f"it makes {here} of {_PROBE!r}, the server {there}"
            )


class ServerEncoder:
    """The served model's tokenizer, a request for each text."""

    def __init__(self, client: Client, *, add_bos_token: bool | None, threads: int) -> None:
        self._client = client
        self._add_bos_token = add_bos_token
        self._threads = threads

    def encode(self, texts: Sequence[str], add_special_tokens: bool | None) -> Iterator[list[int]]:
        said = self._add_bos_token if add_special_tokens is None else add_special_tokens
        # To the server true means: as the tokenizer does by default.
        one = partial(self._client.tokenize, add_special_tokens=said is not False)
        with ThreadPoolExecutor(self._threads) as pool:
            try:
                yield from pool.map(one, texts)
            finally:
                pool.shutdown(cancel_futures=True)
