"""What is asked: all kinds of requests, each with texts that no other has, so that an answer tells whose
it is."""

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mlxscore_client import AsyncClient
from mlxscore_client.calls import Call
from soaking import truth

Numbers = tuple[float, ...]

WINDOW = 256
"""Tokens that a rolling text is read in."""
_WORDS = [
    "the",
    "of",
    "a",
    "model",
    "text",
    "score",
    "token",
    "likely",
    "how",
    "far",
    "is",
    "it",
    "and",
    "river",
    "stone",
    "light",
    "over",
]


@dataclass(frozen=True)
class Ask:
    """One call of the client."""

    kind: str
    tokens: int
    """What the model reads, about."""
    send: Callable[[AsyncClient], Awaitable[Numbers]]
    known: Callable[[], Numbers]
    """The answer of the model by formula."""


def make(number: int, seed: int) -> Ask:
    """The `number`th ask; the same each time."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(_KINDS)
    return kind(rng, number)


def _text(rng: random.Random, number: int, length: int) -> str:
    text = str(number)
    while len(text) < length:
        text += f" {rng.choice(_WORDS)}"
    return text


def _length(rng: random.Random, most: int = 800) -> int:
    return min(most, int(rng.lognormvariate(4.5, 0.9)) + 5)


def _score(rng: random.Random, number: int) -> Ask:
    items = [
        {
            "context": _text(rng, number, _length(rng)),
            "continuations": [f" {j} {rng.choice(_WORDS)}" for j in range(rng.randint(1, 4))],
        }
        for _ in range(rng.randint(1, 4))
    ]
    tokens = rng.random() < 0.3

    async def send(client: AsyncClient) -> Numbers:
        answer = await client.score_items(items, return_tokens=tokens)
        return tuple(s.loglikelihood for result in answer.results for s in result.scores)

    def known() -> Numbers:
        return tuple(truth.pair(i["context"], c) for i in items for c in i["continuations"])

    read = sum((len(i["context"]) + 8) * len(i["continuations"]) for i in items)
    return Ask("/score", read, send, known)


def _pairs(rng: random.Random, number: int) -> Ask:
    pairs = [
        (_text(rng, number, _length(rng)), f" {rng.choice(_WORDS)} {i}")
        for i in range(rng.randint(1, 8))
    ]

    async def send(client: AsyncClient) -> Numbers:
        return tuple(found for found, _ in await client.loglikelihood(pairs))

    size = sum(len(context) + 8 for context, _ in pairs)
    return Ask("pairs", size, send, lambda: tuple(truth.pair(*pair) for pair in pairs))


def _rolling(rng: random.Random, number: int) -> Ask:
    text = _text(rng, number, rng.randint(10, 1500))

    async def send(client: AsyncClient) -> Numbers:
        return tuple(await client.loglikelihood_rolling([text], window=WINDOW))

    return Ask("rolling", len(text), send, lambda: (truth.rolling(text, WINDOW),))


def _completions(rng: random.Random, number: int) -> Ask:
    text = _text(rng, number, _length(rng))
    body = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0}

    def read(answer: Any) -> Numbers:
        return tuple(answer["choices"][0]["logprobs"]["token_logprobs"][1:])

    return _raw("/v1/completions", body, read, len(text), lambda: truth.echo(text))


def _labels(rng: random.Random, number: int) -> Ask:
    query = _text(rng, number, _length(rng))
    items = [f" {rng.choice(_WORDS)} {i}" for i in range(rng.randint(1, 4))]
    body = {"query": query, "items": items, "label_token_ids": [65, 66, 67]}

    def read(answer: Any) -> Numbers:
        return tuple(score for scores in answer["scores"] for score in scores)

    size = (len(query) + 8) * len(items)
    return _raw(
        "/v1/score", body, read, size, lambda: truth.labels(query, items, body["label_token_ids"])
    )


def _rerank(rng: random.Random, number: int) -> Ask:
    query = _text(rng, number, 30)
    documents = [_text(rng, number, _length(rng, 300)) for _ in range(rng.randint(1, 4))]
    body = {"query": query, "documents": documents}

    def read(answer: Any) -> Numbers:
        results = sorted(answer["results"], key=lambda result: result["index"])
        return tuple(result["relevance_score"] for result in results)

    size = sum(2 * (len(document) + 230) for document in documents)
    return _raw("/rerank", body, read, size, lambda: truth.rerank(query, documents))


def _tokenize(rng: random.Random, number: int) -> Ask:
    text = _text(rng, number, _length(rng))

    async def send(client: AsyncClient) -> Numbers:
        return tuple(map(float, await client.tokenize(text)))

    return Ask("/tokenize", 0, send, lambda: tuple(map(float, text.encode())))


def _raw(
    path: str,
    body: dict[str, Any],
    read: Callable[[Any], Numbers],
    tokens: int,
    known: Callable[[], Numbers],
) -> Ask:
    """A call that the client has no method for, with its retries all the same."""
    call = Call("POST", path, lambda content: read(json.loads(content)), json.dumps(body).encode())
    return Ask(path, tokens, lambda client: client._send(call), known)


_KINDS = (_score, _score, _pairs, _pairs, _rolling, _completions, _labels, _rerank, _tokenize)
