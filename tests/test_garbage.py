"""Every endpoint that takes a body, every place in it, every kind of garbage.

An answer is the right one or a 4xx that names the field: never a 500, never a connection that hangs,
and afterwards the scores are what they were.
"""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fakes import Running, byte_tokenizer, error_of, with_app
from sockets import Served, with_server

from mlxscore_client import wire

TALK = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BODIES: dict[str, list[dict[str, Any]]] = {
    "/score": [
        {
            "items": [
                {"context": "a", "continuations": ["b", [5, 6]], "id": "q"},
                {"messages": TALK, "continuation": "b"},
                {"text": "ab cd ef"},
                {"ids": [9, 8, 7, 6, 5]},
            ],
            "top_logprobs": 2,
            "return_tokens": True,
            "add_special_tokens": True,
            "boundary": "joint",
            "truncation": "error",
            "add_generation_prompt": True,
            "continue_final_message": False,
            "chat_template_kwargs": {"k": 1},
            "window": 4,
            "stride": 2,
            "prefix_in": "first",
            "model": None,
        }
    ],
    "/v1/completions": [
        {
            "prompt": ["ab", "cd"],
            "model": None,
            "echo": True,
            "max_tokens": 1,
            "logprobs": 1,
            "prompt_logprobs": 1,
            "add_special_tokens": True,
            "return_tokens_as_token_ids": True,
            "return_token_ids": True,
            "truncate_prompt_tokens": 5,
            "truncation_side": "left",
            "n": 1,
            "best_of": 1,
            "stream": False,
            "suffix": None,
            "logit_bias": {},
            "bad_words": [],
            "use_beam_search": False,
            "temperature": 0,
        },
        {"prompt": [[5, 6], [7, 8]], "echo": True, "logprobs": 2},
        {"prompt": [5, 6]},
    ],
    "/generate": [
        {
            "text": ["a", "b"],
            "sampling_params": [
                {"max_new_tokens": 1, "n": 1, "regex": None},
                {"max_new_tokens": 0},
            ],
            "return_logprob": [True, True],
            "logprob_start_len": [-1, -1],
            "top_logprobs_num": [1, 2],
            "token_ids_logprob": [[5], [6]],
            "return_text_in_logprobs": True,
            "rid": ["x", "y"],
            "stream": False,
            "lora_path": None,
        },
        {
            "input_ids": [[5, 6], [7]],
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        },
    ],
    "/get_sequence_logprobs/": [
        {
            "sequences": [[5, 6, 7], [8, 9]],
            "prompt_lengths": [1, 1],
            "top_logprobs": 2,
            "temperature": 1.0,
            "response_format": "binary",
        }
    ],
    "/v1/score": [
        {
            "query": "a",
            "items": ["b", "c"],
            "label_token_ids": [5, 6],
            "apply_softmax": False,
            "item_first": False,
            "tokenization": "joint",
            "add_special_tokens": True,
            "truncation": "error",
            "model": "default",
        },
        {"query": [5], "items": [[6], [7]], "labels": ["x", "yz"]},
    ],
    "/generative_scoring": [{"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]}],
    "/rerank": [
        {
            "query": "a",
            "documents": ["b", {"text": "c"}],
            "top_n": 1,
            "return_documents": True,
            "instruction": None,
            "model": None,
            "max_tokens_per_doc": None,
            "raw_scores": False,
        }
    ],
    "/tokenize": [
        {"prompt": "a b", "model": None, "add_special_tokens": True, "return_token_strs": True},
        {"messages": TALK, "add_generation_prompt": True, "chat_template_kwargs": {"k": 1}},
    ],
    "/detokenize": [{"tokens": [5, 6, 7], "model": None}],
}
# As JSON is written, since much of it no library writes.
GARBAGE = [
    *("null", "true", "0", "-1", "-2", "1.5", "1.0", "-0.0", "1000000000", "9223372036854775808"),
    *("1" + "0" * 400, "-1" + "0" * 5000, "NaN", "Infinity", "-Infinity", "1e999", "1e308"),
    *('""', '"x"', '"1"', '" "', '"\\u0000"', '"\\ud800"', '"\\ufffe"', '"' + "é" * 400 + '"'),
    *("[]", "{}", "[null]", "[[]]", "[{}]", '[""]', "[9]", "[[9]]", "[true]", "[NaN]", '["x"]'),
    *("[1" + "0" * 30 + "]", '{"a": 1}', '{"": null}', '{"\\ud800": 1}'),
    *("[" * 200 + "]" * 200, '{"a":' * 200 + "1" + "}" * 200, "[" * 5000),
]
Path = tuple[str | int, ...]


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    yield at
    if isinstance(value, dict):
        for key, part in cast(dict[str, Any], value).items():
            yield from places(part, (*at, key))
    elif isinstance(value, list):
        for i, part in enumerate(cast(list[Any], value)):
            yield from places(part, (*at, i))


def written(value: Any, place: Path, garbage: str) -> str:
    """The body as JSON with garbage at one place."""
    if not place:
        return garbage
    here, *rest = place
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key)}: "
            + (written(part, tuple(rest), garbage) if key == here else json.dumps(part))
            for key, part in cast(dict[str, Any], value).items()
        ]
        return "{" + ", ".join(parts) + "}"
    parts = [
        written(part, tuple(rest), garbage) if i == here else json.dumps(part)
        for i, part in enumerate(cast(list[Any], value))
    ]
    return "[" + ", ".join(parts) + "]"


def finite(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def answered(content: bytes) -> Any:
    """The answer without what is new each time, or shared with who else asks (`computed_tokens`)."""
    answer = json.loads(content, parse_constant=finite)
    if not isinstance(answer, dict):
        return answer
    fields = cast(dict[str, Any], answer)
    return {k: v for k, v in fields.items() if k not in ("id", "created", "usage")}


async def post(app: Running, path: str, body: str) -> Any:
    headers = {"content-type": "application/json"}
    return await app.client.post(path, content=body.encode(), headers=headers)


async def the_same_as_ever(app: Running, before: dict[str, Any]) -> dict[str, Any]:
    """Each endpoint's answer to its first good body; equal to that before, where there is one."""
    found: dict[str, Any] = {}
    for path, (body, *_) in BODIES.items():
        body = body | ({"rid": ["x", "y"]} if path == "/generate" else {})
        response = await post(app, path, json.dumps(body))
        assert response.status_code == 200, response.text
        found[path] = answered(response.content)
    assert not before or found == before
    return found


def test_no_endpoint_is_left_out() -> None:
    async def use(app: Running) -> None:
        schema = (await app.client.get("/openapi.json")).json()
        posts = {path for path, methods in schema["paths"].items() if "post" in methods}
        # What comes as lines is in test_stream.py.
        assert posts == {*BODIES, "/score/stream"}

    with_app(use)


@pytest.mark.parametrize("path", BODIES)
def test_garbage_at_every_place(path: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE

    async def use(app: Running) -> None:
        before = await the_same_as_ever(app, {})
        statuses: set[int] = set()
        for body in BODIES[path]:
            for place in places(body):
                for garbage in GARBAGE:
                    sent = written(body, place, garbage)
                    response = await post(app, path, sent)
                    statuses.add(response.status_code)
                    if response.status_code == 200:
                        answered(response.content)
                        continue
                    assert response.status_code in (400, 404), (sent[:300], response.text)
                    check(error_of(response), place, body, sent)
        assert {200, 400} <= statuses
        await the_same_as_ever(app, before)

    with_app(use, tokenizer=tokenizer)


def check(error: wire.ErrorBody, place: Path, body: dict[str, Any], sent: str) -> None:
    said = (error, sent[:300])
    assert error.type in ("invalid_request_error", "not_found_error"), said
    assert len(error.message) < 700, said
    if error.param is None:
        # No JSON, no object, or two fields of which one is needed: both are named.
        whole = error.code == "invalid_json" or not place
        assert whole or str(place[0]) in error.message, said
        return
    field = error.param.partition("[")[0].partition(".")[0]
    assert field in error.message or error.code == "model_not_found", said
    # Where two fields must agree (a query's kind and its items') either may be named.
    assert field in body or field in (place[:1] or [field]), said


MANY, LONG = 600, 2**17
MULTIPLIED: list[tuple[str, dict[str, Any], str]] = [
    # Small bodies that ask for gigabytes.
    (
        "/score",
        {"items": [{"context": "a" * LONG, "continuations": ["b"] * MANY}]},
        "items[0].context",
    ),
    (
        "/score",
        {"items": [{"context": [9] * LONG, "continuations": [[8]] * MANY}]},
        "items[0].context",
    ),
    (
        "/score",
        {
            "items": [
                {
                    "messages": [{"role": "user", "content": "a" * LONG}],
                    "continuations": ["b"] * MANY,
                }
            ]
        },
        "items[0].messages",
    ),
    ("/v1/score", {"query": "a" * LONG, "items": ["b"] * MANY, "label_token_ids": [5]}, "query"),
    ("/v1/score", {"query": [9] * LONG, "items": [[5]] * MANY, "labels": ["b"]}, "query"),
    ("/v1/score", {"query": "", "items": ["a"] * MANY, "labels": ["b"] * MANY}, "items[423]"),
    (
        "/generative_scoring",
        {"query": "", "items": ["a"] * MANY, "label_token_ids": [5] * MANY},
        "items[423]",
    ),
    ("/rerank", {"query": "a" * LONG, "documents": ["b"] * MANY}, "query"),
    (
        "/generate",
        {
            "text": ["a"] * MANY,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "token_ids_logprob": [5] * MANY,
        },
        "token_ids_logprob",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), MULTIPLIED)
def test_what_multiplies_is_refused_before_it_is_made(
    path: str, body: dict[str, Any], param: str
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE

    async def use(app: Running) -> None:
        tracemalloc.start()
        try:
            response = await app.client.post(path, json=body | {"truncation": "left"})
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert response.status_code == 400
        error = error_of(response)
        assert error.param == param
        assert "--max-queued-tokens" in error.message
        assert most < 60 * 2**20  # the largest body has 0.5 MB, and would make 300 MB and more

    with_app(use, tokenizer=tokenizer, max_queued_tokens=10_000)


@pytest.mark.parametrize("path", BODIES)
def test_who_leaves_early_harms_nobody(path: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    body = json.dumps(BODIES[path][0]).encode()

    async def use(served: Served) -> None:
        before = await the_same_as_ever(served.app, {})
        head = f"POST {path} HTTP/1.1\nContent-Length: {len(body)}"
        for sent in (b"", body[:1], body[:-1], body):
            leavers = [await served.connect() for _ in range(8)]
            for leaver in leavers:
                await leaver.send(head, sent)
            for leaver in leavers:
                leaver.writer.transport.abort()
            await served.requests(0)
        # And one who stays on the wire but asks for two answers at once.
        both = await served.connect()
        await both.send(head, body)
        await both.send(head, body)
        assert [(await both.answer()).status_code for _ in range(2)] == [200, 200]
        await the_same_as_ever(served.app, before)

    with_server(use, tokenizer=tokenizer)


def test_many_callers_of_all_kinds_each_get_their_own() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE

    async def use(app: Running) -> None:
        before = await the_same_as_ever(app, {})

        async def garbage(path: str, bad: str) -> None:
            response = await post(app, path, written(BODIES[path][0], (), bad))
            assert response.status_code == 400
            error_of(response)

        good = [the_same_as_ever(app, before) for _ in range(64)]
        bad = [garbage(path, what) for path in BODIES for what in ("[]", "NaN", '"x"', "{")]
        await asyncio.gather(*good, *bad)

    with_app(use, tokenizer=tokenizer)
