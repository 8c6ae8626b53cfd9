"""What endpoints refuse in the same words: fields that cannot be obeyed, too many of the most likely
tokens, too long a prompt. Knows no HTTP, no MLX."""

from collections.abc import Iterable
from reprlib import repr as short_repr

from mlxscore_server.errors import InvalidRequest

# More than texts have in a token (English 4 to 5), so that what could wait in the queue is let through.
_CHARACTERS_A_TOKEN = 8
# About what a row costs besides its ids.
_ROW = 64
# However short the queue: a request that is larger than it runs when nothing else waits.
_LEAST = 2**24


def unsupported(param: str, why: str) -> InvalidRequest:
    """A field that would change the answer, were it obeyed."""
    return InvalidRequest(f"{param} is not supported: {why}", param=param, code="unsupported")


def unsupported_value(param: str, value: object) -> InvalidRequest:
    """The same of an endpoint that others generate text with."""
    return unsupported(
        param,
        "this service scores given text and adds at most the one most likely token "
        f"(got {short_repr(value)[:60]})",
    )


def short(number: int) -> str:
    """A number that somebody sent, for a message: hundreds of digits say no more than twenty."""
    digits = str(number)
    return digits if len(digits) <= 30 else f"{digits[:20]}... ({len(digits)} digits)"


def refuse_set(request: object, names: Iterable[str]) -> None:
    """Raise InvalidRequest for the first of these fields that is neither null nor empty nor false."""
    for name in names:
        if value := getattr(request, name):
            raise unsupported_value(name, value)


class Made:
    """What a request's parts make together, where each of some is put before each of others.

    A small body can ask for more than any memory holds: a long context before a million labels.
    """

    def __init__(self, max_tokens: int | None) -> None:
        self._limit = None if max_tokens is None else max(_LEAST, max_tokens * _CHARACTERS_A_TOKEN)
        self._size = 0

    def add(self, rows: int, before: int, after: int, param: str) -> None:
        """`rows` rows, with `before` characters or ids before each, and `after` in all behind them.

        Raises InvalidRequest where that is far more than may wait in the queue.
        """
        self._size += rows * (_ROW + before) + after
        if self._limit is not None and self._size > self._limit:
            raise InvalidRequest(
                f"{param}: each put together with all that goes with it makes {self._size} characters or "
                f"ids ({_ROW} more for each row), the limit is {self._limit} (it grows with "
                "--max-queued-tokens); send less at once",
                param=param,
            )


def check_rows(rows: int, limit: int, param: str | None = None) -> None:
    """Raise InvalidRequest where a request makes more rows than one may."""
    if rows > limit:
        raise InvalidRequest(
            f"{param or 'the request'} makes {rows} rows, the limit (--max-rows-per-request) is {limit}; "
            "send fewer at once",
            param=param,
            code="too_many_rows",
        )


def check_top(
    k: int,
    param: str,
    *,
    max_logprobs: int,
    vocab_size: int,
    shown: str | None = None,
    hint: str = "",
) -> int:
    """`k`, the number of most likely tokens asked for. Raises InvalidRequest beyond either limit.

    `shown`: k as its sender will know it.
    """
    if k > max_logprobs:
        raise InvalidRequest(
            f"{param} is {short(k) if shown is None else shown}, the limit (--max-logprobs) is "
            f"{max_logprobs}{hint}",
            param=param,
        )
    if k > vocab_size:
        raise InvalidRequest(
            f"{param} is {short(k)}, the model has {vocab_size} tokens", param=param
        )
    return k


def check_length(
    length: int,
    limit: int | None,
    param: str,
    *,
    new_tokens: int = 0,
    new_shown: str = "",
    hint: str = "",
) -> None:
    """Raise InvalidRequest where a prompt and its new tokens are longer than the model takes.

    `new_shown`: what the message says where there are new tokens; `hint`: what can be done.
    """
    if limit is None or length + new_tokens <= limit:
        return
    raise InvalidRequest(
        f"{param} has {length} tokens{new_shown if new_tokens else ''}, the model's limit is {limit}{hint}",
        param=param,
        code="context_length_exceeded",
    )
