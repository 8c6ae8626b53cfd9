"""The real clients over a made-up server (httpx.MockTransport), and over real sockets where the
connection itself is the matter. Nothing waits: the clients' sleep is replaced by a list."""

import asyncio
import json
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import numpy as np
import pytest

from mlxscore_client import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncClient,
    AuthenticationError,
    BadRequestError,
    Client,
    InternalServerError,
    InvalidRequestError,
    InvalidResponseError,
    MlxscoreError,
    NotFoundError,
    PayloadTooLargeError,
    RateLimitError,
    ScoreItem,
    ServerUnavailableError,
)
from mlxscore_client.retry import Retry

Handler = Callable[[httpx.Request], httpx.Response]
OK = httpx.codes.OK


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLXSCORE_BASE_URL", raising=False)
    monkeypatch.delenv("MLXSCORE_API_KEY", raising=False)


def number(context: Any, continuation: Any) -> float:
    """The loglikelihood that `Server` gives; differs for each pair."""
    return -float(sum(map(ord, f"{context}|{continuation}")))


class Server:
    """Answers /score, with `number`; `first` are answered, or raised, before that, one a request."""

    def __init__(self, *first: httpx.Response | Exception) -> None:
        self.first = list(first)
        self.requests: list[httpx.Request] = []

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.first:
            answer = self.first.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return self.score(request)

    def score(self, request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/score")
        results = []
        for i, item in enumerate(json.loads(request.content)["items"]):
            wanted = item.get("continuations") or [item["continuation"]]
            scores = [
                {
                    "index": j,
                    "loglikelihood": number(item["context"], one),
                    "is_greedy": len(one) % 2 == 0,
                    "num_tokens": 1,
                    "num_bytes": 1,
                    "num_chars": 1,
                    "merged_boundary": False,
                }
                for j, one in enumerate(wanted)
            ]
            results.append(
                {
                    "index": i,
                    "id": item.get("id"),
                    "context_tokens": 1,
                    "truncated_tokens": 0,
                    "scores": scores,
                }
            )
        rows = sum(len(result["scores"]) for result in results)
        return httpx.Response(
            OK,
            json={
                "id": "score-1",
                "object": "score",
                "created": 0,
                "model": "m",
                "system_fingerprint": "fp",
                "results": results,
                "usage": {
                    "prompt_tokens": 2 * rows,
                    "total_tokens": 2 * rows,
                    "computed_tokens": rows,
                    "cached_tokens": 0,
                },
            },
        )


def client_of(handler: Handler, **settings: Any) -> tuple[Client, list[float]]:
    """A client, and what it would have slept, in seconds."""
    client = Client(transport=httpx.MockTransport(handler), **settings)
    slept: list[float] = []
    client._sleep = slept.append  # type: ignore[method-assign]
    return client, slept


def envelope(status: int, **headers: str) -> httpx.Response:
    error = {"message": "no good", "type": "a_type", "param": None, "code": "a_code"}
    return httpx.Response(status, json={"error": error}, headers={"x-request-id": "r-1"} | headers)


def refusal(*first: httpx.Response | Exception, **settings: Any) -> Any:
    """The error that a call ends in."""
    client, _ = client_of(Server(*first), **settings)
    with client, pytest.raises(MlxscoreError) as caught:
        client.score("a", ["b"])
    return caught.value


# What is sent, and what comes back.


def test_scores_come_in_the_order_of_the_continuations() -> None:
    server = Server()
    client, _ = client_of(server)
    with client:
        scores = client.score("a", ["b", [1, 2], "c"])
    assert [s.loglikelihood for s in scores] == [number("a", o) for o in ("b", [1, 2], "c")]
    assert [s.index for s in scores] == [0, 1, 2]
    assert server.bodies == [{"items": [{"context": "a", "continuations": ["b", [1, 2], "c"]}]}]
    assert server.requests[0].headers["content-type"] == "application/json"


def test_options_are_sent_by_their_names() -> None:
    options: dict[str, Any] = {
        "return_tokens": True,
        "top_logprobs": 3,
        "add_special_tokens": False,
        "boundary": "separate",
        "truncation": "left",
        "model": "m",
    }
    server = Server()
    client, _ = client_of(server)
    with client:
        client.score("a", ["b"], **options)
        client.score_items([{"context": "a", "continuation": "b"}], **options)
        del options["return_tokens"], options["top_logprobs"]
        client.loglikelihood([("a", "b")], **options)
    for body in server.bodies:
        body.pop("items")
    assert [len(body) for body in server.bodies] == [7, 7, 5]
    for body in server.bodies:
        assert {name: body[name] for name in options} == options


def test_text_crosses_unharmed() -> None:
    text = 'é 😀 "\\ \u2028 \x00 \n'
    server = Server()
    client, _ = client_of(server)
    with client:
        client.score(text, [text])
    assert server.bodies[0]["items"] == [{"context": text, "continuations": [text]}]


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), np.array([1, 2]), list(np.array([1, 2], np.int32)), range(1, 3)]
)
def test_ids_of_any_integer_kind(ids: Any) -> None:
    server = Server()
    client, _ = client_of(server)
    with client:
        client.score(ids, [ids])
        client.loglikelihood([(ids, ids)])
        client.score_items([{"context": ids, "continuation": ids}])
    assert [next(iter(b["items"]))["context"] for b in server.bodies] == [[1, 2]] * 3
    assert server.bodies[0]["items"][0]["continuations"] == [[1, 2]]
    assert server.bodies[2]["items"][0]["continuation"] == [1, 2]


def test_items_as_wire_types_or_mappings() -> None:
    client, _ = client_of(Server())
    items = [
        ScoreItem(context="a", continuation="b", id="x"),
        {"context": "c", "continuation": "d"},
    ]
    with client:
        response = client.score_items(iter(items))
    assert [(r.index, r.id) for r in response.results] == [(0, "x"), (1, None)]
    assert response.results[1].scores[0].loglikelihood == number("c", "d")


def test_pairs_share_a_context_with_their_neighbours_only() -> None:
    pairs = [("a", "1"), ("a", "22"), ("b", "1"), ("a", "3"), ([1], "1"), ((1,), "2")]
    server = Server()
    client, _ = client_of(server)
    with client:
        answers = client.loglikelihood(iter(pairs))
    sent = [(i["context"], i["continuations"]) for i in server.bodies[0]["items"]]
    assert sent == [("a", ["1", "22"]), ("b", ["1"]), ("a", ["3"]), ([1], ["1", "2"])]
    expected = [
        (number(c if isinstance(c, str) else list(c), o), len(o) % 2 == 0) for c, o in pairs
    ]
    assert answers == expected


def test_no_pairs_need_no_request() -> None:
    server = Server()
    client, _ = client_of(server)
    with client:
        assert client.loglikelihood([]) == []
    assert server.requests == []


@pytest.mark.parametrize(("status", "state"), [(OK, "ok"), (503, "loading"), (503, "draining")])
def test_health_is_told_whatever_it_is(status: int, state: str) -> None:
    server = Server(httpx.Response(status, json={"status": state}))
    client, slept = client_of(server)
    with client:
        assert client.health().status == state
    assert (len(server.requests), slept) == (1, [])


def test_health_of_what_is_not_a_server_of_ours() -> None:
    client, _ = client_of(Server(httpx.Response(503, html="<h1>Service Unavailable</h1>")))
    with client, pytest.raises(ServerUnavailableError, match="Service Unavailable"):
        client.health()


def test_models() -> None:
    card = {
        "id": "m",
        "created": 0,
        "root": "m",
        "max_model_len": None,
        "dtype": "float32",
        "head_dtype": "float32",
        "quantization": None,
        "vocab_size": 3,
        "adds_bos": False,
        "bos_token_id": 1,
        "eos_token_id": None,
        "max_logprobs": 20,
        "system_fingerprint": "fp",
        "self_check": {"padding": "left-padded", "max_error": 0.0, "mean_error": 0.0},
    }
    server = Server(httpx.Response(OK, json={"object": "list", "data": [card]}))
    client, _ = client_of(server)
    with client:
        assert [model.id for model in client.models().data] == ["m"]
    assert str(server.requests[0].url) == "http://127.0.0.1:8000/v1/models"


def test_tokenize() -> None:
    answer = {"count": 2, "max_model_len": None, "tokens": [5, 7]}
    server = Server(*(httpx.Response(OK, json=answer) for _ in range(3)))
    client, _ = client_of(server)
    with client:
        assert client.tokenize("é\n") == [5, 7]
        assert client.tokenize("<s>", add_special_tokens=False) == [5, 7]

    async def use() -> None:
        async with AsyncClient(transport=httpx.MockTransport(server)) as client:
            assert await client.tokenize("x") == [5, 7]

    asyncio.run(use())
    assert {request.url.path for request in server.requests} == {"/tokenize"}
    assert server.bodies == [
        {"prompt": "é\n", "add_special_tokens": True},
        {"prompt": "<s>", "add_special_tokens": False},
        {"prompt": "x", "add_special_tokens": True},
    ]


# What is refused before anything is sent.


@pytest.mark.parametrize(
    ("call", "param", "said"),
    [
        (lambda c: c.score("a", ["b", [1, -1]]), "continuations[1][1]", "greater than or equal"),
        (lambda c: c.score("a", ["b", [True]]), "continuations[1][0]", "integer"),
        (lambda c: c.score([1.5], ["b"]), "context[0]", "integer"),
        (lambda c: c.score(np.array([0.5]), ["b"]), "context[0]", "integer"),
        (lambda c: c.score([[1]], ["b"]), "context[0]", "integer"),
        (lambda c: c.score(None, ["b"]), "context", "must be a text"),
        (lambda c: c.score("a", []), "continuations", "at least 1"),
        (lambda c: c.score("a\ud800", ["b"]), "context", "lone surrogate"),
        (lambda c: c.score("a", ["b"], top_logprobs=-1), "top_logprobs", "greater than or equal"),
        (lambda c: c.score("a", ["b"], boundary="x"), "boundary", "joint"),
        (lambda c: c.score_items([]), "items", "at least 1"),
        (lambda c: c.score_items([{"context": "a"}]), "items[0]", "exactly one of"),
        (
            lambda c: c.score_items([{"context": "a", "continuation": "b", "contnuations": []}]),
            "items[0]",
            "did you mean 'continuations'?",
        ),
        (lambda c: c.loglikelihood([("a", "b"), ("a", 3)]), "pairs[1].continuation", "text"),
        (lambda c: c.loglikelihood([([1], "b"), ([True], "b")]), "pairs[1].context[0]", "integer"),
        (lambda c: c.loglikelihood([([1], "b"), ([1.0], "b")]), "pairs[1].context[0]", "integer"),
        (lambda c: c.loglikelihood([("a", "b"), "ab"]), "pairs[1]", "pair"),
        (lambda c: c.loglikelihood([("a", "b", "c")]), "pairs[0]", "pair"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_sent(
    call: Callable[[Client], Any], param: str, said: str
) -> None:
    server = Server()
    client, _ = client_of(server)
    with client, pytest.raises(InvalidRequestError) as caught:
        call(client)
    assert isinstance(caught.value, ValueError)
    assert caught.value.param == param
    assert param in str(caught.value)
    assert said in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("one", [" Paris", b" Paris"])
def test_a_lone_continuation_is_not_taken_for_a_list_of_letters(one: Any) -> None:
    client, _ = client_of(Server())
    with client, pytest.raises(TypeError, match="pass \\[continuation\\]"):
        client.score("a", one)


@pytest.mark.parametrize(
    "one", ["text", {"context": "a", "continuation": "b"}, ScoreItem(context="a", continuation="b")]
)
def test_a_lone_item_is_not_taken_for_a_list(one: Any) -> None:
    client, _ = client_of(Server())
    with client, pytest.raises(TypeError, match="list of items"):
        client.score_items(one)


# Errors that an answer stands for.


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, BadRequestError),
        (401, AuthenticationError),
        (403, AuthenticationError),
        (404, NotFoundError),
        (405, BadRequestError),
        (413, PayloadTooLargeError),
        (415, BadRequestError),
        (422, BadRequestError),
        (429, RateLimitError),
        (500, InternalServerError),
        (502, InternalServerError),
        (503, ServerUnavailableError),
        (504, InternalServerError),
    ],
)
def test_every_status_has_its_error(status: int, error: type[APIStatusError]) -> None:
    found = refusal(envelope(status), max_retries=0)
    assert type(found) is error
    assert (found.status, found.type, found.code, found.param) == (status, "a_type", "a_code", None)
    assert (found.message, str(found), found.request_id) == ("no good", "no good", "r-1")


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>\n  Bad   Gateway </body></html>",
        b"",
        b"null",
        b"[1]",
        b'{"error": null}',
        b'{"error": {}}',
        b'{"detail": "Not Found"}',
        b"\xff\xfe\x00",
        b'{"error": ',
    ],
)
def test_what_is_not_our_envelope_is_an_error_all_the_same(body: bytes) -> None:
    found = refusal(httpx.Response(502, content=body))
    assert type(found) is InternalServerError
    assert str(found).startswith("HTTP 502 Bad Gateway from http://127.0.0.1:8000/score: ")
    assert (found.type, found.param, found.code, found.request_id) == (None, None, None, None)


def test_a_long_page_is_not_thrown_at_the_user() -> None:
    assert len(str(refusal(httpx.Response(500, content=b"x" * 10**6)))) < 400


def test_a_redirect_says_where_to() -> None:
    found = refusal(httpx.Response(307, headers={"location": "https://there/score"}))
    assert isinstance(found, APIStatusError)
    assert "https://there/score" in str(found)
    assert "base_url" in str(found)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Welcome</html>",
        b"{}",
        b"\xff",
        b'{"results": []}',
        Server()
        .score(
            httpx.Request(
                "POST",
                "http://x/score",
                json={"items": [{"context": "a", "continuations": ["b", "c"]}]},
            )
        )
        .content,  # an answer to another request
    ],
)
def test_an_answer_that_is_not_ours(body: bytes) -> None:
    found = refusal(httpx.Response(OK, content=body))
    assert type(found) is InvalidResponseError
    assert "is base_url right?" in str(found)
    assert found.__cause__ is not None


def test_errors_cross_a_process_pool() -> None:
    found = refusal(envelope(429, **{"retry-after": "7"}), max_retries=0)
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is RateLimitError
    assert (again.message, again.status, again.retry_after) == ("no good", 429, 7.0)


def test_the_server_s_path_becomes_the_caller_s() -> None:
    def fourth_is_bad(request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        for i, item in enumerate(items):
            for j, one in enumerate(item.get("continuations") or [item["continuation"]]):
                if one == "bad":
                    which = f".continuations[{j}]" if "continuations" in item else ".continuation"
                    param = f"items[{i}]{which}"
                    error = {"message": f"{param}: too long", "type": "t", "param": param}
                    return httpx.Response(400, json={"error": error})
        return Server().score(request)

    client, _ = client_of(fourth_is_bad, max_items_per_request=2)
    good = {"context": "a", "continuation": "b"}
    with client:
        with pytest.raises(BadRequestError) as of_items:
            client.score_items([good, good, good, good | {"continuation": "bad"}])
        with pytest.raises(BadRequestError) as of_score:
            client.score("a", ["b", "b", "b", "bad"])
        with pytest.raises(BadRequestError) as of_pairs:
            client.loglikelihood([("a", "b"), ("c", "b"), ("c", "b"), ("c", "bad")])
    for caught, param in (
        (of_items, "items[3].continuation"),
        (of_score, "continuations[3]"),
        (of_pairs, "pairs[3].continuation"),
    ):
        assert (caught.value.param, str(caught.value)) == (param, f"{param}: too long")


# Trying again.


RETRIED = [
    envelope(429),
    envelope(503),
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    httpx.ReadError("reset"),
    httpx.WriteError("broken pipe"),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
]


@pytest.mark.parametrize("failure", RETRIED, ids=repr)
def test_what_may_pass_is_sent_again_and_unchanged(failure: httpx.Response | Exception) -> None:
    server = Server(failure, failure)
    client, slept = client_of(server)
    with client:
        assert client.score("a", ["b"])[0].loglikelihood == number("a", "b")
    assert (len(server.requests), len(slept)) == (3, 2)
    assert len({request.content for request in server.requests}) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422, 500, 502, 504])
def test_what_will_fail_again_is_not_sent_again(status: int) -> None:
    server = Server(envelope(status))
    client, slept = client_of(server)
    with client, pytest.raises(APIStatusError):
        client.score("a", ["b"])
    assert (len(server.requests), slept) == (1, [])


@pytest.mark.parametrize(
    "error", [httpx.ReadTimeout("slow"), httpx.WriteTimeout("slow"), httpx.PoolTimeout("slow")]
)
def test_a_slow_server_is_not_given_the_same_work_again(error: Exception) -> None:
    server = Server(error)
    client, slept = client_of(server)
    with client, pytest.raises(APITimeoutError, match="raise `timeout`") as caught:
        client.score("a", ["b"])
    assert (len(server.requests), slept) == (1, [])
    assert caught.value.__cause__ is error


def test_retries_end() -> None:
    server = Server(*[envelope(429)] * 3)
    client, slept = client_of(server, max_retries=2)
    with client, pytest.raises(RateLimitError) as caught:
        client.score("a", ["b"])
    assert (len(server.requests), len(slept)) == (3, 2)
    assert "3 attempts" in caught.value.__notes__[0]


def test_retries_grow_and_are_spread() -> None:
    error = RateLimitError("full", retryable=True)
    longest = [Retry(20, random=lambda: 1.0).delay(error, attempt) for attempt in range(7)]
    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    shortest = [Retry(20, random=lambda: 0.0).delay(error, attempt) for attempt in range(7)]
    assert shortest == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("header", "told", "least"),
    [
        ("7", 7.0, 7.0),
        ("0", 0.0, 0.0),
        (" 2.5 ", 2.5, 2.5),
        ("86400", 86400.0, 60.0),
        ("9" * 400, float("inf"), 60.0),
        ("soon", None, 0.0),
        ("-3", None, 0.0),
        ("nan", None, 0.0),
        ("", None, 0.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds(status: int, header: str, told: float | None, least: float) -> None:
    error = refusal(envelope(status, **{"retry-after": header}), max_retries=0)
    assert error.retry_after == told
    client, slept = client_of(Server(envelope(status, **{"retry-after": header})))
    with client:
        client.score("a", ["b"])
    assert least <= slept[0] <= least + 0.5


def test_retry_after_as_a_date() -> None:
    # By the server's own clock, which may be years off.
    sent = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    until = format_datetime(sent + timedelta(seconds=9), usegmt=True)
    date = format_datetime(sent, usegmt=True)
    assert (
        refusal(envelope(503, **{"retry-after": until, "date": date}), max_retries=0).retry_after
        == 9
    )
    # Long gone, by ours.
    assert refusal(envelope(503, **{"retry-after": until}), max_retries=0).retry_after == 0
    ahead = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    error = refusal(envelope(503, **{"retry-after": ahead}), max_retries=0)
    assert 80_000 < error.retry_after <= 86_400


# Large calls.


def items_of(count: int) -> list[dict[str, Any]]:
    return [{"context": f"c{i}", "continuation": "x", "id": f"id{i}"} for i in range(count)]


def test_many_items_are_split_and_joined_as_one_answer() -> None:
    server = Server()
    client, _ = client_of(server, max_items_per_request=3)
    with client:
        response = client.score_items(items_of(8), top_logprobs=2)
    assert [len(body["items"]) for body in server.bodies] == [3, 3, 2]
    assert all(body["top_logprobs"] == 2 for body in server.bodies)
    assert [(r.index, r.id) for r in response.results] == [(i, f"id{i}") for i in range(8)]
    assert [r.scores[0].loglikelihood for r in response.results] == [
        number(f"c{i}", "x") for i in range(8)
    ]
    assert response.usage.model_dump() == {
        "prompt_tokens": 16,
        "total_tokens": 16,
        "computed_tokens": 8,
        "cached_tokens": 0,
    }


@pytest.mark.parametrize("limit", [120, 200, 333, 1000])
def test_no_request_is_larger_than_its_bound_in_bytes(limit: int) -> None:
    server = Server()
    client, _ = client_of(server, max_bytes_per_request=limit)
    items = [
        {"context": "é" * (i % 7), "continuations": ["ab", [1, 22], "c" * i]} for i in range(20)
    ]
    with client:
        response = client.score_items(items, boundary="separate")
    assert all(len(request.content) <= limit for request in server.requests)
    assert len(server.requests) > 1
    assert [[s.loglikelihood for s in r.scores] for r in response.results] == [
        [number(i["context"], one) for one in i["continuations"]] for i in items
    ]


def test_one_row_over_the_bound_is_sent_alone() -> None:
    server = Server()
    client, _ = client_of(server, max_bytes_per_request=100)
    with client:
        client.score_items(
            [*items_of(1), {"context": "x" * 500, "continuation": "y"}, *items_of(1)]
        )
    assert [len(body["items"]) for body in server.bodies] == [1, 1, 1]


def test_many_continuations_of_one_context_are_split_too() -> None:
    server = Server()
    client, _ = client_of(server, max_items_per_request=4)
    wanted = [f"w{i}" for i in range(10)]
    with client:
        scores = client.score("a", wanted)
    assert [len(b["items"][0]["continuations"]) for b in server.bodies] == [4, 4, 2]
    assert [(s.index, s.loglikelihood) for s in scores] == [
        (i, number("a", one)) for i, one in enumerate(wanted)
    ]


def test_a_model_that_changes_within_a_call_is_an_error() -> None:
    names = iter("ab")

    def other_model(request: httpx.Request) -> httpx.Response:
        answer = Server().score(request).json()
        return httpx.Response(OK, json=answer | {"model": next(names)})

    client, _ = client_of(other_model, max_items_per_request=1)
    with client, pytest.raises(InvalidResponseError, match="changed its model"):
        client.score_items(items_of(2))


# Where the server is.


def sent_by(**settings: Any) -> httpx.Request:
    server = Server(httpx.Response(OK, json={"status": "ok"}))
    client, _ = client_of(server, **settings)
    with client:
        client.health()
    return server.requests[0]


def test_url_and_key_from_arguments_then_environment_then_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = sent_by()
    assert str(request.url) == "http://127.0.0.1:8000/health"
    assert "authorization" not in request.headers
    monkeypatch.setenv("MLXSCORE_BASE_URL", "https://there.example/mlx/")
    monkeypatch.setenv("MLXSCORE_API_KEY", "from-env\n")
    request = sent_by()
    assert str(request.url) == "https://there.example/mlx/health"
    assert request.headers["authorization"] == "Bearer from-env"
    request = sent_by(base_url="http://[::1]:9", api_key="mine", headers={"X-Team": "t"})
    assert str(request.url) == "http://[::1]:9/health"
    assert request.headers["authorization"] == "Bearer mine"
    assert request.headers["x-team"] == "t"
    assert request.headers["user-agent"].startswith("mlxscore-client/0.1.0 ")


def test_the_environment_is_read_when_the_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client() as client:
        monkeypatch.setenv("MLXSCORE_BASE_URL", "http://later:1")
        assert client.base_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:99999", "x"])
def test_a_bad_url_is_told_at_once(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="base_url") as caught:
        Client(url)
    assert caught.value.param == "base_url"


@pytest.mark.parametrize(
    "settings",
    [{"max_retries": -1}, {"max_items_per_request": 0}, {"max_bytes_per_request": 0}],
)
def test_bad_settings_are_told_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(settings))):
        Client(**settings)


def test_a_key_that_no_header_can_hold_is_told_and_not_shown() -> None:
    with pytest.raises(InvalidRequestError, match="api_key") as caught:
        Client(api_key="gehe\x00im")
    assert "gehe" not in str(caught.value)


def timeout_of(request: httpx.Request) -> dict[str, float | None]:
    return request.extensions["timeout"]


def test_timeouts_are_explicit() -> None:
    server = Server()
    client, _ = client_of(server)
    with client:
        client.score("a", ["b"])
    assert (timeout_of(server.requests[0])["connect"], timeout_of(server.requests[0])["read"]) == (
        5,
        600,
    )
    assert (timeout_of(sent_by(timeout=3))["connect"], timeout_of(sent_by(timeout=3))["read"]) == (
        3,
        3,
    )
    # Health never waits behind scoring, so ten minutes of silence say enough long before.
    assert timeout_of(sent_by())["read"] == 10


# The asynchronous client, and event loops.


def test_the_async_client_answers_as_the_sync_one() -> None:
    async def use() -> None:
        server = Server()
        transport = httpx.MockTransport(server)
        async with AsyncClient(transport=transport, max_items_per_request=3) as client:
            slept: list[float] = []

            async def sleep(seconds: float) -> None:
                slept.append(seconds)

            client._sleep = sleep  # type: ignore[method-assign]
            server.first = [envelope(429), httpx.ReadError("reset")]
            scores = await client.score("a", ["b", "c"])
            assert [s.loglikelihood for s in scores] == [number("a", "b"), number("a", "c")]
            assert len(slept) == 2
            response = await client.score_items(items_of(20))
            assert [(r.index, r.id) for r in response.results] == [(i, f"id{i}") for i in range(20)]
            pairs = [("a", "b"), ("a", "cc")]
            assert await client.loglikelihood(pairs) == [
                (number("a", "b"), False),
                (number("a", "cc"), True),
            ]
            assert await client.loglikelihood([]) == []
            server.first = [httpx.Response(503, json={"status": "loading"})]
            assert (await client.health()).status == "loading"
            server.first = [envelope(404)]
            with pytest.raises(NotFoundError):
                await client.models()

    asyncio.run(use())


class Gate:
    """Counts requests under way and answers none of them until `expected` are, last come first."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.under_way = self.most = 0
        self.full = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way == self.expected:
            self.full.set()
        await self.full.wait()
        self.under_way -= 1
        return Server().score(request)


def test_the_async_client_sends_side_by_side_but_not_all_at_once() -> None:
    async def use() -> None:
        gate = Gate(AsyncClient.max_concurrency)
        transport = httpx.MockTransport(gate)
        async with AsyncClient(transport=transport, max_items_per_request=1) as client:
            response = await client.score_items(items_of(30))
        assert [r.id for r in response.results] == [f"id{i}" for i in range(30)]
        assert gate.most == AsyncClient.max_concurrency

    asyncio.run(use())


def test_the_first_failure_is_raised_as_it_is_and_cancels_the_rest() -> None:
    cancelled: list[str] = []
    started: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        name = json.loads(request.content)["items"][0]["id"]
        started.append(name)
        if name == "id2":
            return envelope(400)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        raise AssertionError

    async def use() -> None:
        transport = httpx.MockTransport(answer)
        async with AsyncClient(transport=transport, max_items_per_request=1) as client:
            with pytest.raises(BadRequestError, match="no good"):
                await client.score_items(items_of(9))
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(use())
    assert "id2" not in cancelled
    assert sorted([*cancelled, "id2"]) == sorted(started)
    assert len(started) <= AsyncClient.max_concurrency


def test_a_cancelled_call_leaves_nothing_running() -> None:
    async def use() -> None:
        gate = Gate(10**9)
        entered = asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            entered.set()
            return await gate(request)

        transport = httpx.MockTransport(answer)
        async with AsyncClient(transport=transport, max_items_per_request=1) as client:
            call = asyncio.create_task(client.score_items(items_of(9)))
            await entered.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(use())


def test_the_sync_client_works_inside_a_running_event_loop() -> None:
    """As in Jupyter."""

    async def cell() -> None:
        client, _ = client_of(Server())
        with client:
            assert len(client.score("a", ["b"])) == 1

    asyncio.run(cell())


def test_threads_may_share_a_client() -> None:
    client, _ = client_of(Server())
    found: dict[int, float] = {}

    def use(i: int) -> None:
        found[i] = client.score(f"c{i}", ["x"])[0].loglikelihood

    with client:
        threads = [threading.Thread(target=use, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {i: number(f"c{i}", "x") for i in range(8)}


# Real sockets.


@contextmanager
def listening(answers: Iterable[bytes | None]) -> Generator[str]:
    """A server's URL; it reads each connection's request and sends the answer, or for None resets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(30)
                    connection.recv(2**16)
                    if answer is None:
                        # Lingering for no time makes close() send a reset.
                        linger = struct.pack("ii", 1, 0)
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    else:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


HEALTHY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
    b'Connection: close\r\n\r\n{"status":"ok"}'
)
NO_MODELS = HEALTHY.replace(b'{"status":"ok"}', b'{"data": [ ] } ')


def test_where_nobody_listens_the_error_says_what_to_do() -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    with Client(url, max_retries=0) as client, pytest.raises(APIConnectionError) as caught:
        client.score("a", ["b"])
    assert type(caught.value) is APIConnectionError
    assert url in str(caught.value)
    assert "`mlxscore-server`" in str(caught.value)
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


def test_where_nobody_listens_it_tries_again_first() -> None:
    slept: list[float] = []
    with Client(f"http://127.0.0.1:{unused_port()}", max_retries=2) as client:
        client._sleep = slept.append  # type: ignore[method-assign]
        with pytest.raises(APIConnectionError):
            client.models()
    assert len(slept) == 2


def test_a_reset_connection_is_tried_again() -> None:
    slept: list[float] = []
    with listening([None, b"", NO_MODELS]) as url, Client(url) as client:
        client._sleep = slept.append  # type: ignore[method-assign]
        assert client.models().data == []
    assert len(slept) == 2


def test_a_connection_that_is_always_reset() -> None:
    with (
        listening([None]) as url,
        Client(url, max_retries=0) as client,
        pytest.raises(APIConnectionError, match="broke before the answer came"),
    ):
        client.models()


def test_a_real_answer_by_the_async_client() -> None:
    async def use(url: str) -> None:
        async with AsyncClient(url) as client:
            assert (await client.health()).status == "ok"

    with listening([HEALTHY]) as url:
        asyncio.run(use(url))


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with listening([HEALTHY]) as url, Client(url) as client:
        assert client.health().status == "ok"


def test_a_closed_client_says_so() -> None:
    client = Client()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()
