"""What endpoints refuse in the same words: fields that cannot be obeyed, too many of the most likely
tokens, too long a prompt. Knows no HTTP, no MLX."""

from collections.abc import Iterable
from reprlib import repr as short_repr

from mlxscore_server.errors import InvalidRequest


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
