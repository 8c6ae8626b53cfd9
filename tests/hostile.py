"""A thousand bodies and requests that no server should answer, made from good ones."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

GOOD: dict[str, dict[str, Any]] = {
    "/score": {
        "items": [{"context": "a", "continuations": ["b", [99]]}, {"ids": [1, 2, 3]}],
        "return_tokens": True,
        "top_logprobs": 2,
        "boundary": "separate",
        "window": 8,
    },
    "/v1/completions": {"prompt": ["ab", "cd"], "echo": True, "logprobs": 1, "max_tokens": 0},
    "/generate": {
        "input_ids": [[1, 2], [3, 4]],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": [True, True],
        "logprob_start_len": 0,
    },
    "/get_sequence_logprobs/": {
        "sequences": [[1, 2, 3], [4, 5]],
        "prompt_lengths": [1, 1],
        "top_logprobs": 1,
        "response_format": "json",
    },
    "/v1/score": {"query": "a", "items": ["b", "c"], "label_token_ids": [1, 2]},
    "/generative_scoring": {"query": [97], "items": [[98], [99]], "label_token_ids": [1, 2]},
    "/rerank": {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    "/tokenize": {"prompt": "ab", "add_special_tokens": False},
    "/detokenize": {"tokens": [97, 98]},
}
"""A body that is answered, for each path that takes one."""

GIVING = ("/health", "/v1/models", "/v1/models/bytes", "/version", "/openapi.json")
JSON_TYPE = "application/json"

# Written as they stand: no JSON library would write most of them.
_NEVER = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\xff\xfe"',
    b'"\xc3"',
    b'"\xed\xa0\x80"',  # a surrogate as UTF-8 would have it
    b'"a\x00b"',
    b'"a\nb"',
    b"\x00",
    b"01",
    b"+1",
    b"0x1",
    b"1.",
    b"'a'",
    b"undefined",
    b"[1,]",
    b'{"a":1,}',
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"[" * 300 + b"]" * 300,
)
_KINDS: tuple[tuple[type, bytes], ...] = (
    (dict, b'{"no such": {"field": 1}}'),
    (list, b'[{"no": "item"}, null]'),
    (str, b'"\\u0000 neither this"'),
    (bool, b"true"),
    (int, b"-9" + b"9" * 400),
    (int, b"1e999"),
    (int, b"2147483648.5"),
    (int, b"-1.5e-3"),
)
# Fields that take this kind too, or a list of it.
_TAKEN = {("logprobs", bool), ("return_logprob", bool), ("documents", str)}
_TYPES = (
    "text/plain",
    "text/json",
    "application/xml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json, text/plain",
    "application/octet-stream",
    "",
)
_METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")


@dataclass(frozen=True)
class Hostile:
    """One request."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON_TYPE
    encoding: str = "identity"


def corpus() -> Iterator[Hostile]:
    """All of them, the same each time."""
    for path, good in GOOD.items():
        for body in [*_replaced(good), *_broken(good)]:
            yield Hostile("POST", path, body)
        sent = json.dumps(good).encode()
        for kind in _TYPES:
            yield Hostile("POST", path, sent, content_type=kind)
        for encoding in ("gzip", "br", "deflate, identity", "zstd"):
            yield Hostile("POST", path, sent, encoding=encoding)
        for method in _METHODS:
            yield Hostile(method, path, sent)
    for path in GIVING:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"):
            yield Hostile(method, path)
    outside = ("/%2e%2e/etc", "/score/..%2f..%2fetc%2fpasswd", "/%00", "/score%0d%0aX: y")
    for path in ("/nowhere", "/v1", *outside):
        for method in ("GET", "POST"):
            yield Hostile(method, path)


def _replaced(good: dict[str, Any]) -> Iterator[bytes]:
    """The body with each of its places in turn taken by what cannot stand there."""
    mark = "\ue000"
    for place, was in _places(good):
        around = json.dumps(_with(good, place, mark), ensure_ascii=False).encode()
        for value in _NEVER:
            yield around.replace(f'"{mark}"'.encode(), value)
        for kind, value in _KINDS:
            # What is of the same kind may be right; and a list may stand where a text may, and back.
            alike = kind is type(was) or {kind, type(was)} == {list, str} or type(was) is bool
            if value == b"1e999" or not (alike or (place[0], kind) in _TAKEN):
                yield around.replace(f'"{mark}"'.encode(), value)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if at:
        yield at, value
    parts = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        parts = list(enumerate(value))[-1:]  # the last stands for all
    for name, part in parts:
        yield from _places(part, (*at, name))


def _with(value: Any, at: tuple[Any, ...], mark: str) -> Any:
    if not at:
        return mark
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = _with(copy[at[0]], at[1:], mark)
    return copy


def _broken(good: dict[str, Any]) -> Iterator[bytes]:
    """What is no JSON, or no object, or lacks what is needed."""
    sent = json.dumps(good).encode()
    yield from (
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b"true",
        b"\x00",
        b"\xef\xbb\xbf",
    )
    yield from (sent[: len(sent) * part // 8] for part in range(1, 8))
    yield from (sent + b"}", sent + sent, sent.decode().encode("utf-16"), b"[" + sent + b"]")
    first = next(iter(good))
    # The last of two counts, and it is wrong.
    yield sent[:-1] + f', "{first}": 7}}'.encode()
    yield sent.replace(b'"', b"'")
