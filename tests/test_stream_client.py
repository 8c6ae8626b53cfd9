"""`score_stream` of both clients: over a made-up server where it has to misbehave, and a real process."""

import asyncio
import itertools
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from steady_model import logprobs
from steady_process import Steady

from mlxscore_client import (
    APIConnectionError,
    APIStatusError,
    AsyncClient,
    BadRequestError,
    Client,
    InvalidRequestError,
    InvalidResponseError,
    NotFoundError,
    ScoreItem,
    ServerUnavailableError,
    StreamResult,
)
from mlxscore_client.stream import MAX_AHEAD, MAX_ITEMS

Items = Iterable[Mapping[str, Any] | ScoreItem]
Way = Callable[..., list[StreamResult]]
DRAINING = {"message": "bye", "type": "unavailable_error", "param": None, "code": "draining"}


def item(i: int) -> dict[str, Any]:
    return {"context": "c", "continuation": f"{i}", "id": f"n{i}"}


class Server:
    """Answers items with minus their number as the loglikelihood, those of a request from the last to the
    first. `ends`: how its first requests end: a status, or how many items are answered, and with what line
    then (None: the connection breaks)."""

    def __init__(self, *ends: int | tuple[int, bytes | None]) -> None:
        self.ends = list(ends)
        self.bodies: list[list[int]] = []
        self.params: list[dict[str, str]] = []

    def answer(self, request: httpx.Request) -> Iterator[bytes] | httpx.Response:
        assert request.url.path == "/score/stream"
        assert request.headers["content-type"] == "application/x-ndjson"
        numbers = [int(json.loads(line)["continuation"]) for line in request.content.splitlines()]
        self.bodies.append(numbers)
        self.params.append(dict(request.url.params))
        end = self.ends.pop(0) if self.ends else (len(numbers), b"")
        if isinstance(end, int):
            return httpx.Response(end, json={"error": DRAINING})
        return self.lines(numbers, *end)

    @staticmethod
    def lines(numbers: list[int], count: int, last: bytes | None) -> Iterator[bytes]:
        for index in list(reversed(range(len(numbers))))[:count]:
            score = {"index": 0, "loglikelihood": -numbers[index], "is_greedy": False}
            score |= {"num_tokens": 1, "num_bytes": 1, "num_chars": 1, "merged_boundary": False}
            result = {"index": index, "id": f"n{numbers[index]}\u2028", "scores": [score]}
            result |= {"context_tokens": 1, "truncated_tokens": 0}
            line = json.dumps(result, ensure_ascii=False).encode() + b"\n"
            yield line[:40]
            yield line[40:]
        if last is None:
            raise httpx.ReadError("reset")
        yield last


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, lines: Iterator[bytes]) -> None:
        self.lines = lines

    def __iter__(self) -> Iterator[bytes]:
        return self.lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line


def transport(server: Server) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        answer = server.answer(request)
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, stream=Body(answer))

    return httpx.MockTransport(handle)


def by_sync(server: Server, items: Items, **options: Any) -> list[StreamResult]:
    with Client("http://test", transport=transport(server)) as client:
        client._sleep = lambda seconds: None  # type: ignore[method-assign]
        return list(client.score_stream(items, **options))


def by_async(server: Server, items: Items, **options: Any) -> list[StreamResult]:
    async def no_sleep(seconds: float) -> None:
        pass

    async def some() -> AsyncIterator[Mapping[str, Any] | ScoreItem]:
        for one in items:
            yield one

    async def main() -> list[StreamResult]:
        async with AsyncClient("http://test", transport=transport(server)) as client:
            client._sleep = no_sleep  # type: ignore[method-assign]
            return [result async for result in client.score_stream(some(), **options)]

    return asyncio.run(main())


ways = pytest.mark.parametrize("way", [by_sync, by_async])


def check(results: list[StreamResult], count: int) -> None:
    """Each of `count` items has its own scores, once."""
    assert sorted(result.index for result in results) == list(range(count))
    for result in results:
        assert result.scores is not None
        assert result.scores[0].loglikelihood == -result.index


@ways
@pytest.mark.parametrize("count", [0, 1, MAX_ITEMS, MAX_AHEAD + MAX_ITEMS + 7])
def test_each_item_is_answered_once(way: Way, count: int) -> None:
    server = Server()
    results = way(server, (item(i) for i in range(count)))
    check(results, count)
    assert sorted(itertools.chain(*server.bodies)) == list(range(count))
    assert all(len(body) <= MAX_ITEMS for body in server.bodies)
    assert server.params == [{}] * len(server.bodies)


@ways
def test_in_order(way: Way) -> None:
    results = way(Server(), (item(i) for i in range(2000)), ordered=True)
    assert [result.index for result in results] == list(range(2000))


@ways
def test_options_go_along(way: Way) -> None:
    server = Server()
    way(
        server,
        [item(0)],
        return_tokens=True,
        top_logprobs=2,
        model="m",
        chat_template_kwargs={"a": 1},
    )
    way(server, [item(0)], add_special_tokens=False, ordered=True)
    assert server.params == [
        {
            "return_tokens": "true",
            "top_logprobs": "2",
            "model": "m",
            "chat_template_kwargs": '{"a":1}',
        },
        {"add_special_tokens": "false"},
    ]


@ways
def test_only_what_is_unanswered_is_sent_again(way: Way) -> None:
    ended = json.dumps({"error": DRAINING}).encode() + b"\n"
    server = Server((4, None), 503, (3, ended), 429, (2, b""), (1, ended))
    results = way(server, [item(i) for i in range(12)])
    check(results, 12)
    # From the last to the first: 4, none, 3, none, 2, 1 and then the others.
    assert [len(body) for body in server.bodies] == [12, 8, 8, 5, 5, 3, 2]
    assert server.bodies[-1] == [0, 1]


@ways
def test_gives_up_where_nothing_goes_on(way: Way) -> None:
    with pytest.raises(ServerUnavailableError, match="bye") as caught:
        way(Server(*[503] * 9), [item(0)])
    assert "gave up after 5 attempts" in caught.value.__notes__[0]
    with pytest.raises(APIConnectionError):
        way(Server(*[(0, None)] * 9), [item(0)])
    with pytest.raises(APIConnectionError, match="1 of 1 items unanswered"):
        way(Server(*[(0, b"")] * 9), [item(0)])


@ways
def test_what_will_not_get_better_is_raised_at_once(way: Way) -> None:
    for status, kind in ((400, BadRequestError), (404, NotFoundError)):
        server = Server(status, status)
        with pytest.raises(kind):
            way(server, [item(0)])
        assert len(server.bodies) == 1
    expired = DRAINING | {"type": "timeout_error", "code": "request_timeout"}
    with pytest.raises(APIStatusError) as caught:
        way(Server((0, json.dumps({"error": expired}).encode() + b"\n")), [item(0)])
    assert caught.value.code == "request_timeout"


@ways
@pytest.mark.parametrize(
    "line",
    [
        b"<html>\n",
        b"{}\n",
        b'{"index": 0}\n',
        b'{"index": 7, "scores": []}\n',
        b'{"index": -1, "scores": []}\n',
        b'{"index": 0, "scores": []}\n{"index": 0, "scores": []}\n',
    ],
)
def test_an_answer_of_another_kind(way: Way, line: bytes) -> None:
    with pytest.raises(InvalidResponseError, match="/score/stream"):
        way(Server((0, line)), [item(0)])


@ways
def test_what_is_wrong_with_an_item_is_its_result(way: Way) -> None:
    server = Server()
    items: list[Any] = [item(0), {"contex": 1, "id": "bad"}, "text", item(3), {"context": "\ud800"}]
    results = way(server, items, ordered=True)
    assert [result.error is None for result in results] == [True, False, False, True, False]
    assert server.bodies == [[0, 3]]
    error = results[1].error
    assert results[1].id == "bad"
    assert error is not None
    assert (error.type, error.code) == ("invalid_request_error", "invalid_value")
    assert "did you mean 'context'" in error.message
    # Also where none is right, and so nothing is ever sent.
    assert len(way(server, [{}] * 3000)) == 3000


@ways
def test_wrong_options_and_items(way: Way) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        way(Server(), [], top_logprobs=-1)
    assert caught.value.param == "top_logprobs"


def test_one_item_is_not_several() -> None:
    given: Any
    for given in (item(0), ScoreItem(text="a"), "text"):
        for client in (Client("http://test"), AsyncClient("http://test")):
            with pytest.raises(TypeError, match="items must be"):
                client.score_stream(given)


def test_an_endless_iterator_is_taken_from_as_results_are_taken() -> None:
    taken = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield item(i)

    with Client("http://test", transport=transport(Server())) as client:
        for ordered in (False, True):
            taken, results = 0, client.score_stream(endless(), ordered=ordered)
            assert not taken
            for given in range(1, 3000):
                next(results)
                assert taken <= given + MAX_AHEAD
            results.close()

    async def main() -> None:
        nonlocal taken
        taken = 0
        async with (
            AsyncClient("http://test", transport=transport(Server())) as client,
            aclosing(client.score_stream(endless())) as results,
        ):
            given = 0
            async for _ in results:
                given += 1
                assert taken <= given + MAX_AHEAD
                if given == 3000:
                    break
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_what_the_iterator_raises_reaches_the_caller() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield item(0)
        raise KeyError("a file that ends")

    with Client("http://test", transport=transport(Server())) as client, pytest.raises(KeyError):
        list(client.score_stream(broken()))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_server_that_is_killed_and_started_again(ordered: bool) -> None:
    texts = [f"{i} and more" for i in range(1500)]
    items = [{"context": "c", "continuation": text, "id": text} for text in texts]
    results: list[StreamResult] = []
    again = threading.Event()
    with Steady(seconds_per_token=2e-5) as first, Client(first.url) as client:
        client._sleep = lambda seconds: again.wait() and None  # type: ignore[method-assign]
        for result in client.score_stream(items, ordered=ordered):
            results.append(result)
            if len(results) == 300:
                first.stop(signal.SIGKILL)
                port = first.url.rpartition(":")[2]
                second = Steady("--port", port, seconds_per_token=2e-5).__enter__()
                again.set()
    second.__exit__(None, None, None)
    check_scores(results, texts)
    if ordered:
        assert [result.index for result in results] == list(range(1500))
    assert second.troubles() == []


def check_scores(results: list[StreamResult], texts: list[str]) -> None:
    assert sorted(result.index for result in results) == list(range(len(texts)))
    for result in results:
        text = texts[result.index]
        assert result.id == text
        assert result.scores is not None
        known = sum(logprobs([*b"c", *text.encode()], 1))
        assert result.scores[0].loglikelihood == pytest.approx(known, abs=1e-4)
