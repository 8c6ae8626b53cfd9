"""What each method sends and how it reads the answer, once for the sync and the async client.

Pure: knows paths and JSON, neither httpx nor how to wait.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from mlxscore_client import inputs
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.pairs import Pairs
from mlxscore_client.split import Answer, join, read, split
from mlxscore_client.wire import (
    Health,
    ModelList,
    Score,
    ScoreItem,
    ScoreRequest,
    ScoreResponse,
    TokenizeResponse,
)

T = TypeVar("T")

_OF_TEXT = re.compile(r"items\[(\d+)\](?:\.text|\.ids)?")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and what its answer means."""

    method: str
    path: str
    read: Callable[[bytes], T]
    """From an answer's body; a ValueError says that it is not what was asked for."""
    content: bytes | None = None
    """JSON."""
    caller_path: Callable[[str], str] = str
    """From a path in the body, which an error names, to one in the caller's arguments."""
    also_reads: frozenset[int] = frozenset()
    """Statuses other than 2xx whose body is an answer too."""
    quick: bool = False
    """Never waits behind scoring: a server that does not answer soon is not well."""
    retries: bool = True


@dataclass(frozen=True)
class Job(Generic[T]):
    """A method's requests, made as they are asked for, and their answers as its result."""

    calls: Iterable[Call[Any]]
    join: Callable[[Sequence[Any]], T]


@dataclass(frozen=True)
class Limits:
    """How large one request may become."""

    max_rows: int
    max_bytes: int


HEALTH = Call(
    "GET",
    "/health",
    Health.model_validate_json,
    also_reads=frozenset({503}),
    quick=True,
    # It asks how things are now.
    retries=False,
)
MODELS = Call("GET", "/v1/models", ModelList.model_validate_json, quick=True)


def tokenize(
    text: str, add_special_tokens: bool, caller_path: Callable[[str], str] = str
) -> Call[TokenizeResponse]:
    """One text's ids."""
    return _tokenize({"prompt": text, "add_special_tokens": add_special_tokens}, caller_path)


def tokenize_messages(
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    caller_path: Callable[[str], str],
) -> Call[TokenizeResponse]:
    """A conversation's ids, through the model's chat template."""
    messages = [dict(message) for message in messages]
    body = {"messages": messages, "add_generation_prompt": add_generation_prompt}
    return _tokenize(body, caller_path)


def _tokenize(body: dict[str, Any], caller_path: Callable[[str], str]) -> Call[TokenizeResponse]:
    return Call(
        "POST",
        "/tokenize",
        TokenizeResponse.model_validate_json,
        content=inputs.tokenize_request(body, caller_path).encode(),
        caller_path=caller_path,
    )


def score(
    context: TextOrIds,
    continuations: Iterable[TextOrIds],
    options: Mapping[str, Any],
    limits: Limits,
) -> Job[list[Score]]:
    """One context, several continuations."""

    def caller_path(path: str) -> str:
        return path.removeprefix("items[0].")

    item = {"context": context, "continuations": inputs.continuations(continuations)}
    request = inputs.score_request([item], options, caller_path)
    return Job(
        _score_calls(request, limits, caller_path), lambda answers: join(answers).results[0].scores
    )


def score_items(
    items: Iterable[ScoreItem | Mapping[str, Any]],
    options: Mapping[str, Any],
    limits: Limits,
    caller_path: Callable[[str], str] = str,
) -> Job[ScoreResponse]:
    """Items as they are."""
    request = inputs.score_request(items, options, caller_path)
    return Job(_score_calls(request, limits, caller_path), join)


def loglikelihood(
    pairs: Iterable[tuple[TextOrIds, TextOrIds]], options: Mapping[str, Any], limits: Limits
) -> Job[list[tuple[float, bool]]]:
    """Pairs of (context, continuation). None at all is a job without requests."""
    grouped = Pairs.of(pairs)
    if not grouped.items:
        return Job((), lambda _: [])
    request = inputs.score_request(grouped.items, options, grouped.caller_path)
    return Job(
        _score_calls(request, limits, grouped.caller_path),
        lambda answers: grouped.read(join(answers)),
    )


def loglikelihood_rolling(
    texts: Iterable[TextOrIds], options: Mapping[str, Any], limits: Limits
) -> Job[list[float]]:
    """Whole texts. None at all is a job without requests."""

    def caller_path(path: str) -> str:
        return _OF_TEXT.sub(r"texts[\1]", path, count=1)

    items = inputs.whole_texts(texts)
    if not items:
        return Job((), lambda _: [])
    request = inputs.score_request(items, options, caller_path)
    return Job(
        _score_calls(request, limits, caller_path),
        lambda answers: [result.scores[0].loglikelihood for result in join(answers).results],
    )


def _score_calls(
    request: ScoreRequest, limits: Limits, caller_path: Callable[[str], str]
) -> Iterable[Call[Answer]]:
    for body in split(request, max_rows=limits.max_rows, max_bytes=limits.max_bytes):
        yield Call(
            "POST",
            "/score",
            partial(read, body),
            content=body.json,
            caller_path=_composed(caller_path, body.caller_path),
        )


def _composed(outer: Callable[[str], str], inner: Callable[[str], str]) -> Callable[[str], str]:
    return lambda path: outer(inner(path))
