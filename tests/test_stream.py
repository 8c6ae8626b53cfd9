"""`POST /score/stream`: every item answered once, whatever comes in and however it is read."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from fakes import Running, error_of, loglikelihood, with_app
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_client.wire import ScoreRequest, StreamOptions, StreamResult
from mlxscore_server.lines import Lines

HEADERS = {"content-type": "application/x-ndjson"}
GOOD = {"context": "a", "continuation": "b"}


async def ask(app: Running, content: Any, **params: Any) -> httpx.Response:
    return await app.client.post("/score/stream", content=content, params=params, headers=HEADERS)


def lines(items: Iterable[object]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def results(response: httpx.Response) -> list[StreamResult]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    found = [StreamResult.model_validate_json(line) for line in response.content.splitlines()]
    for one in found:
        assert (one.scores is None) != (one.error is None)
    return found


def test_each_item_is_answered_once_as_score_does() -> None:
    items: list[dict[str, Any]] = [
        {"context": "x", "continuations": [chr(97 + i % 26) * (1 + i % 7), "z"], "id": f"n{i}"}
        for i in range(3000)
    ]
    items[7] = {"text": "a whole text", "id": "whole"}

    async def use(app: Running) -> None:
        found = results(await ask(app, lines(items), return_tokens="true", top_logprobs=2))
        assert sorted(one.index for one in found) == list(range(3000))
        response = await app.score(items=items, return_tokens=True, top_logprobs=2)
        by_index = {one.index: one for one in found}
        for plain in response.json()["results"]:
            one = by_index[plain["index"]]
            assert one.model_dump(mode="json", exclude_unset=True) == plain

    with_app(use)


def test_in_the_order_of_the_items_where_that_is_asked_for() -> None:
    # Long and short by turns, bad ones between: they are not done in this order.
    items: list[object] = [
        {"context": "x", "continuation": "y" * (1 + 37 * i % 500)} if i % 5 else {"context": i}
        for i in range(700)
    ]

    async def use(app: Running) -> None:
        found = results(await ask(app, lines(items), ordered="true"))
        assert [one.index for one in found] == list(range(700))
        assert [one.error is None for one in found] == [i % 5 > 0 for i in range(700)]

    with_app(use)


BAD = [
    (b'{"context": "a", "continuation": "b"', "invalid_json", None, "the line is not valid JSON"),
    (
        b'{"context": "\xff", "continuation": "b"}',
        "invalid_json",
        None,
        "the line is not valid JSON",
    ),
    ('{"context": "a", "continuation": "b"}'.encode("utf-16-le"), "invalid_json", None, "the line"),
    (b'"a"', "invalid_value", None, "the line must be a JSON object, not a string"),
    (b'[{"context": "a", "continuation": "b"}]', "invalid_value", None, "not an array"),
    (b'{"contex": "a", "id": "i"}', "invalid_value", "contex", "did you mean 'context'?"),
    (b'{"context": "a", "continuation": 7}', "invalid_value", "continuation", "must be a text"),
    (b'{"context": "a", "continuations": ["b", ""]}', "invalid_value", "continuations[1]", "empty"),
    (b'{"context": [999], "continuation": "b"}', "invalid_value", "context[0]", "999"),
    (
        b'{"context": "a", "continuation": "%b"}' % (b"b" * 1100),
        None,
        "continuation",
        "limit of 1000",
    ),
    (b'{"text": "' + b"x" * 3000 + b'"}', "body_too_large", None, "more than 2000 bytes"),
    (b'{"context": "a", "continuation": "b\x01"}', "invalid_json", None, "control character"),
    (b'{"context": "a", "continuation": "\\u0001"}', "non_finite_logits", "continuation", "NaN"),
    (b'{"context": "a", "continuations": ["b", "\\u0001"]}', None, "continuations[1]", "NaN"),
    (b'{"text": "a\\u0002"}', "non_finite_logits", "text", "not finite"),
    (b'{"context": "a", "continuation": "\\u0003"}', "scoring_failed", "continuation", "failed"),
]


@pytest.mark.parametrize("ordered", ["true", "false"])
def test_what_is_wrong_with_one_line_is_said_of_that_line(ordered: str) -> None:
    good = lines([GOOD | {"id": "good"}])
    body = b"\xef\xbb\xbf" + good + b"".join(bad + b"\n" + good for bad, *_ in BAD)

    async def use(app: Running) -> None:
        found = results(await ask(app, body, ordered=ordered))
        assert len(found) == 2 * len(BAD) + 1
        by_index = {one.index: one for one in found}
        for i in range(0, len(found), 2):
            scores = by_index[i].scores
            assert by_index[i].id == "good"
            assert scores is not None and scores[0].loglikelihood == loglikelihood("b")
        for i, (bad, code, param, message) in enumerate(BAD):
            error = by_index[2 * i + 1].error
            assert error is not None, bad
            assert message in error.message, error
            assert error.param == param, error
            assert code is None or error.code == code
            assert "items[" not in error.message
        assert by_index[11].id == "i", "known in spite of what is wrong"

    with_app(use, max_request_bytes=2000)


@pytest.mark.parametrize(
    "body, count",
    [
        (b"", 0),
        (b"\n \r\n\t\n", 0),
        (b"\xef\xbb\xbf", 0),
        (b"\n\n%b\n\r\n%b\r\n\n%b", 3),  # the last has no end
        (b"\xef\xbb\xbf%b\r\n%b", 2),
    ],
)
def test_blank_lines_count_no_index(body: bytes, count: int) -> None:
    item = json.dumps(GOOD).encode()

    async def use(app: Running) -> None:
        found = results(await ask(app, body.replace(b"%b", item), ordered="true"))
        assert [one.index for one in found] == list(range(count))
        assert not any(one.error for one in found)

    with_app(use)


@given(st.data())
def test_lines_are_the_same_however_they_come(data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from([b"", b" ", b"{}", b"12345", b"123456", b"1\r2"])))
    ends = [data.draw(st.sampled_from([b"\n", b"\r\n"])) for _ in some]
    body = b"".join(line + end for line, end in zip(some, ends, strict=True))
    body += data.draw(st.sampled_from([b"", b"last", b"123456", b" "]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    made = Lines(5)
    found = [
        line
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)
        for line in made.feed(body[begin:end])
    ]
    found += made.end()
    wanted = [line for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.strip()]
    assert [line.index for line in found] == list(range(len(wanted)))
    assert [line.data for line in found] == [None if len(w) > 5 else w for w in wanted]


def test_a_line_that_is_too_long_is_not_kept() -> None:
    made = Lines(1000)
    for _ in range(1000):
        assert not list(made.feed(b"x" * 500))
        assert len(made._part) <= 1010
    (line, other) = made.feed(b"\nnext\n")
    assert (line.data, other.data) == (None, b"next")


WRONG = [
    ({"return_token": "true"}, "return_token", "did you mean 'return_tokens'?"),
    ({"items": "[]"}, "items", "unknown field"),
    ({"return_tokens": "yes"}, "return_tokens", "valid boolean, not 'yes'"),
    ({"top_logprobs": "-1"}, "top_logprobs", "greater than or equal to 0"),
    ({"top_logprobs": "2.5"}, "top_logprobs", "integer"),
    ({"top_logprobs": "21"}, "top_logprobs", "the limit (--max-logprobs) is 20"),
    ({"top_logprobs": ["1", "2"]}, "top_logprobs", "given twice"),
    ({"boundary": "both"}, "boundary", "'joint' or 'separate'"),
    ({"truncation": ""}, "truncation", "'error' or 'left'"),
    ({"window": "5000"}, "window", "the model's limit is 1000"),
    ({"cache_salt": ""}, "cache_salt", "must not be empty"),
    ({"chat_template_kwargs": "[1]"}, "chat_template_kwargs", "valid dictionary"),
    ({"ordered": "1"}, "ordered", "valid boolean"),
]


@pytest.mark.parametrize("params, param, message", WRONG)
def test_wrong_options_are_refused_before_anything_is_scored(
    params: dict[str, Any], param: str, message: str
) -> None:
    async def use(app: Running) -> None:
        response = await ask(app, lines([GOOD]), **params)
        error = error_of(response)
        assert response.status_code == 400
        assert not app.scorer.batches
        assert error.param == param
        assert message in error.message

    with_app(use)


def test_other_refusals() -> None:
    async def use(app: Running) -> None:
        assert error_of(await ask(app, b"", model="other")).code == "model_not_found"
        for headers in ({}, {"content-type": "text/plain"}, HEADERS | {"content-encoding": "gzip"}):
            response = await app.client.post("/score/stream", content=b"x", headers=headers)
            assert response.status_code == 415, headers
            error_of(response)
        response = await app.client.post(
            "/score/stream", content=b"", headers=HEADERS | {"x-priority": "high"}
        )
        assert error_of(response).param == "X-Priority"

    with_app(use)


def test_options_have_the_names_and_the_meaning_of_score() -> None:
    params = {
        "return_tokens": "true",
        "top_logprobs": "3",
        "add_special_tokens": "false",
        "truncation": "left",
        "boundary": "separate",
        "model": "bytes",
        "cache_salt": "12",
        "window": "null",
    }
    item = {"context": "long" * 300, "continuation": "b"}

    async def use(app: Running) -> None:
        (one,) = results(await ask(app, lines([item]), **params))
        assert {row.salt for batch in app.scorer.batches for row in batch.rows} == {b"12"}
        body = {
            "return_tokens": True,
            "top_logprobs": 3,
            "add_special_tokens": False,
            "truncation": "left",
            "boundary": "separate",
        }
        (plain,) = (await app.score(items=[item], **body)).json()["results"]
        assert one.model_dump(mode="json", exclude_unset=True) == plain
        assert one.truncated_tokens

    with_app(use)


def test_a_full_queue_is_waited_for() -> None:
    async def use(app: Running) -> None:
        found = results(await ask(app, lines([GOOD | {"context": "a" * 40}] * 1500)))
        assert not any(one.error for one in found)
        assert len(found) == 1500

    # Less than one group of lines makes.
    with_app(use, max_queued_tokens=5000)


def test_low_priority_unless_it_says_otherwise() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        waiting = [
            asyncio.create_task(
                app.client.post("/score/stream", content=lines([GOOD]), headers=HEADERS | more)
            )
            for more in ({}, {"x-priority": "normal"}, {"x-priority": "low"})
        ]
        while len(app.engine._waiting) < 4:
            await asyncio.sleep(0)
        assert sorted(job.low for job in app.engine._waiting) == [False, False, True, True]
        app.scorer.gate.set()
        for task in [held, *waiting]:
            assert (await task).status_code == 200

    with_app(use)


def test_the_schema_says_what_is_taken_and_given() -> None:
    async def use(app: Running) -> None:
        schema = (await app.client.get("/openapi.json")).json()
        stream = schema["paths"]["/score/stream"]["post"]
        assert [one["name"] for one in stream["parameters"]] == list(StreamOptions.model_fields)
        assert {*ScoreRequest.model_fields} - {"items"} == {*StreamOptions.model_fields} - {
            "ordered"
        }
        asked = stream["requestBody"]["content"]["application/x-ndjson"]["example"]
        (answer,) = results(await ask(app, asked.encode()))
        shown = stream["responses"]["200"]["content"]["application/x-ndjson"]["example"]
        assert json.loads(shown).keys() == answer.model_dump(exclude_unset=True).keys()

    with_app(use)
