"""`POST /v1/completions` as the openai package and lm-evaluation-harness send and read it."""

import asyncio
import itertools
import math
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tiny_tokenizers
from fakes import (
    BOS,
    MAX_MODEL_LEN,
    NAN,
    Running,
    error_of,
    with_app,
)
from openai import AsyncOpenAI, BadRequestError, OpenAI
from server_process import ServerProcess

from mlxscore_client import Client, wire

CAP = 20
ABSENT = object()
TEXTS = ["The capital of France is Paris.", "Été 日本 👍🏽 naïve ‘x’"]
SHAPES = ["text", "texts", "ids", "id_lists"]


async def complete(app: Running, **body: Any) -> httpx.Response:
    return await app.client.post("/v1/completions", json=body)


async def choices(app: Running, **body: Any) -> list[dict[str, Any]]:
    response = await complete(app, **body)
    assert response.status_code == 200, response.text
    # Nothing in an answer may be missing from what the documentation shows.
    wire.CompletionResponse.model_validate_json(response.content)
    return response.json()["choices"]


# --- the openai package against the real server ---


@pytest.fixture(scope="module")
def openai(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def encoded(server: ServerProcess) -> list[list[int]]:
    """The ids of TEXTS."""
    body = {"prompt": TEXTS, "echo": True, "return_token_ids": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
    return [choice["prompt_token_ids"] for choice in answer["choices"]]


def prompt_in(shape: str, all_ids: list[list[int]]) -> Any:
    given: dict[str, Any] = {
        "text": TEXTS[0],
        "texts": TEXTS,
        "ids": all_ids[0],
        "id_lists": all_ids,
    }
    return given[shape]


def arguments(max_tokens: object, logprobs: int | None) -> dict[str, Any]:
    given: dict[str, Any] = {"model": "tiny", "logprobs": logprobs}
    return given if max_tokens is ABSENT else given | {"max_tokens": max_tokens}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_combination_through_the_openai_package(
    shape: str, tiny_server: ServerProcess
) -> None:
    with (
        OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as openai,
        Client(tiny_server.url) as client,
    ):
        all_ids = encoded(tiny_server)
        sums = [whole_sum(client, ids) for ids in all_ids]
        texts: dict[tuple[bool, int], list[str]] = {}
        for echo, max_tokens, logprobs in itertools.product(
            [False, True], [ABSENT, 0, 1], [None, 0, 1, 5, CAP]
        ):
            answer = openai.completions.create(
                prompt=prompt_in(shape, all_ids), echo=echo, **arguments(max_tokens, logprobs)
            )
            new = (0 if echo else 1) if max_tokens is ABSENT else max_tokens
            assert isinstance(new, int)
            prompts = len(TEXTS) if shape in ("texts", "id_lists") else 1
            assert [choice.index for choice in answer.choices] == list(range(prompts))
            assert answer.usage is not None
            assert answer.usage.completion_tokens == new * prompts
            assert answer.usage.prompt_tokens == sum(map(len, all_ids[:prompts]))
            # Whoever asks for logprobs gets the text that all others get.
            given = [choice.text for choice in answer.choices]
            assert texts.setdefault((echo, new), given) == given
            for choice, text, ids, total in zip(answer.choices, TEXTS, all_ids, sums, strict=False):
                assert choice.finish_reason == "length"
                assert choice.text.startswith(text) if echo else not choice.text.startswith(text)
                if logprobs is None:
                    assert choice.logprobs is None
                    continue
                assert choice.logprobs is not None
                check(choice.logprobs, choice.text, len(ids) * echo, new, logprobs)
                if echo:
                    values: list[Any] = list(choice.logprobs.token_logprobs or [])
                    # Other lengths, other kernels: float32 rounding, 1e-5 a token.
                    assert abs(sum(values[1 : len(ids)]) - total) <= 1e-5 * len(ids)


def check(found: Any, text: str, num_prompt: int, new: int, k: int) -> None:
    """Lengths, nulls, offsets, and the same float in both places."""
    count = num_prompt + new
    arrays = [found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset]
    assert [len(array) for array in arrays] == [count] * 4
    nulls = 1 if num_prompt else 0
    assert found.token_logprobs[:nulls] == [None] * nulls
    assert found.top_logprobs[:nulls] == [None] * nulls
    assert found.text_offset == sorted(found.text_offset)
    assert all(0 <= offset <= len(text) for offset in found.text_offset)
    for token, logprob, top in list(zip(*arrays[:3], strict=True))[nulls:]:
        assert isinstance(logprob, float)
        assert logprob <= 1e-6
        # Fewer where ids read alike (parts of characters), one more where the token is not among them.
        assert 1 <= len(top) <= k + 1
        assert token in top
        if "\N{REPLACEMENT CHARACTER}" not in token:
            assert top[token] == logprob
    if new and k:
        assert found.token_logprobs[-1] == max(found.top_logprobs[-1].values())


def whole_sum(client: Client, ids: list[int]) -> float:
    [score] = client.score(ids[:1], [ids[1:]])
    return score.loglikelihood


def test_tokens_stand_where_their_offsets_say(openai: OpenAI) -> None:
    for text in TEXTS:
        answer = openai.completions.create(
            model="", prompt=text, echo=True, logprobs=1, extra_body={"model": None}
        )
        found = answer.choices[0].logprobs
        assert found is not None
        assert found.tokens is not None
        assert found.text_offset is not None
        for token, offset in zip(found.tokens, found.text_offset, strict=True):
            if "\N{REPLACEMENT CHARACTER}" not in token:
                assert text[offset : offset + len(token)] == token


def test_the_best_of_each_position_is_what_score_says(
    openai: OpenAI, client: Client, server: ServerProcess
) -> None:
    ids = encoded(server)[0]
    as_ids = {"return_tokens_as_token_ids": True, "prompt_logprobs": 3}
    answer = openai.completions.create(
        model="", prompt=ids, echo=True, logprobs=3, extra_body={"model": None, **as_ids}
    ).choices[0]
    [score] = client.score(ids[:1], [ids[1:]], top_logprobs=3)
    assert score.tokens is not None
    assert answer.logprobs is not None
    tops = answer.logprobs.top_logprobs
    assert tops is not None
    by_id: Any = answer.model_extra and answer.model_extra["prompt_logprobs"]
    assert by_id[0] is None
    assert len(by_id) == len(ids)
    best: set[int] = set()
    for token, top, ranked in zip(score.tokens, tops[1:], by_id[1:], strict=True):
        assert token.top is not None
        wanted = {f"token_id:{t.id}": t.logprob for t in token.top}
        wanted |= {f"token_id:{token.id}": token.logprob}
        assert top == pytest.approx(wanted, abs=1e-6)
        assert {f"token_id:{i}" for i in ranked} == set(wanted)
        assert ranked[str(token.id)]["rank"] == token.rank
        assert ranked[str(token.id)]["logprob"] == pytest.approx(token.logprob, abs=1e-6)
        best.add(token.top[0].id)
    assert len(best) > 3


@pytest.mark.parametrize("temperature", [None, 0.3, 1, 2.5, 1e9])
def test_temperature_does_not_touch_the_numbers(openai: OpenAI, temperature: float | None) -> None:
    """As with vLLM, whose `raw_logprobs` are the model's own by default."""

    def values(**options: Any) -> list[float]:
        answer = openai.completions.create(
            model="",
            prompt=TEXTS[0],
            echo=True,
            max_tokens=1,
            logprobs=2,
            extra_body={"model": None, "prompt_logprobs": 1} | options,
        ).choices[0]
        found = answer.logprobs
        assert found is not None
        assert found.top_logprobs is not None
        ranked: Any = (answer.model_extra or {})["prompt_logprobs"]
        tops = [value for top in [*found.top_logprobs[1:]] for value in top.values()]
        by_id = [entry["logprob"] for entries in ranked[1:] for entry in entries.values()]
        return [*(found.token_logprobs or [])[1:], *tops, *by_id]

    assert values(temperature=temperature) == pytest.approx(values(temperature=0), abs=1e-5)


@pytest.mark.parametrize("logprobs", [CAP + 1, -1, 10**9])
def test_too_many_logprobs_name_the_limit(openai: OpenAI, logprobs: int) -> None:
    with pytest.raises(BadRequestError, match=r"--max-logprobs\) is 20") as caught:
        openai.completions.create(model="SmolLM2-135M-Instruct", prompt="a", logprobs=logprobs)
    assert caught.value.param == "logprobs"


def test_many_callers_of_the_async_client_each_get_their_own(server: ServerProcess) -> None:
    prompts = [f"The number {i} is" for i in range(24)]

    async def main() -> list[list[float]]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:

            async def ask(prompt: str) -> list[float]:
                answer = await client.completions.create(
                    model="SmolLM2-135M-Instruct", prompt=prompt, echo=True, logprobs=1
                )
                found = answer.choices[0].logprobs
                assert found is not None
                values: list[Any] = list(found.token_logprobs or [])
                return values[1:]

            return await asyncio.gather(*map(ask, prompts))

    together = asyncio.run(main())
    with OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        answer = client.completions.create(
            model="SmolLM2-135M-Instruct", prompt=prompts, echo=True, logprobs=1
        )
        for choice, found in zip(answer.choices, together, strict=True):
            assert choice.logprobs is not None
            values: list[Any] = list(choice.logprobs.token_logprobs or [])
            assert found == pytest.approx(values[1:], abs=1e-4)
    assert len({round(sum(found), 3) for found in together}) == len(prompts)


# --- lm-evaluation-harness's reading, on a model whose answers are known ---


def test_what_lm_evaluation_harness_sends_and_slices() -> None:
    """The slice drops the last entry, taken for the new token: with one entry too few the
    continuation's last token would be lost and every choice would score alike."""

    async def use(app: Running) -> None:
        contexts, continuations = [list(b"Q: "), list(b"A")], [list(b"yes"), list(b"n")]
        body = {
            "model": "bytes",
            "prompt": [c + k for c, k in zip(contexts, continuations, strict=True)],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        response = await app.client.post(
            "/v1/completions", json=body, headers={"Authorization": "Bearer "}
        )
        out = response.json()
        for choice, context, continuation in zip(
            sorted(out["choices"], key=lambda c: c["index"]), contexts, continuations, strict=True
        ):
            values = choice["logprobs"]["token_logprobs"]
            assert len(values) == len(context) + len(continuation) + 1
            assert sum(values[len(context) : -1]) == pytest.approx(-sum(continuation) / 256)
            tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
            assert [max(top.values()) for top in tops] == [0.0] * len(continuation)

    with_app(use)


def test_what_the_gguf_client_reads() -> None:
    """By offsets in characters, and the new token's alternatives too."""

    async def use(app: Running) -> None:
        body = {"prompt": "Q: " + "\x00", "logprobs": 10, "temperature": 0.0, "max_tokens": 1}
        [choice] = await choices(app, **body, echo=True)
        found = choice["logprobs"]
        assert found["text_offset"] == [0, 1, 2, 3, 4]
        assert choice["text"] == "Q: \x00\x00"
        assert all(len(top) >= 10 for top in found["top_logprobs"][1:])
        for token, top in list(zip(found["tokens"], found["top_logprobs"], strict=True))[3:]:
            assert max(top, key=lambda key: top[key]) == token == "\x00"

    with_app(use)


def test_zero_and_one_new_token_agree_on_the_prompt() -> None:
    async def use(app: Running) -> None:
        [none] = await choices(app, prompt="hello", echo=True, max_tokens=0, logprobs=2)
        [one] = await choices(app, prompt="hello", echo=True, max_tokens=1, logprobs=2)
        for name, values in none["logprobs"].items():
            assert one["logprobs"][name][:-1] == values
        assert (await app.client.get("/health")).status_code == 200

    with_app(use)


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    async def use(app: Running) -> None:
        [choice] = await choices(app, prompt=[65], echo=True, max_tokens=0, logprobs=1)
        assert choice["logprobs"] == {
            "tokens": ["A"],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }
        assert app.scorer.batches == []

    with_app(use)


def test_only_what_is_asked_for_is_computed() -> None:
    async def use(app: Running) -> None:
        assert (await choices(app, prompt="hello", echo=True))[0]["text"] == "hello"
        assert app.scorer.batches == []
        await choices(app, prompt="hello", echo=True, max_tokens=1)
        [batch] = app.scorer.batches
        assert [row.num_targets for row in batch.rows] == [1]

    with_app(use)


def test_ids_that_read_alike_keep_the_larger_value() -> None:
    """Bytes that are no character each read as U+FFFD."""

    async def use(app: Running) -> None:
        low, high = 0xF0, 0x80
        [choice] = await choices(app, prompt=[65, low, high], echo=True, logprobs=5)
        found = choice["logprobs"]
        assert found["tokens"][1:] == ["\N{REPLACEMENT CHARACTER}"] * 2
        assert found["token_logprobs"][1:] == [-low / 256, -high / 256]
        assert [max(top.values()) for top in found["top_logprobs"][1:]] == [0.0, 0.0]
        [named] = await choices(
            app, prompt=[65, low], echo=True, logprobs=1, return_tokens_as_token_ids=True
        )
        assert named["logprobs"]["top_logprobs"][1] == {"token_id:0": 0.0, "token_id:240": -0.9375}

    with_app(use)


def test_logprobs_may_be_true_false_or_none() -> None:
    async def use(app: Running) -> None:
        for given, expected in [(True, 2), (False, None), (None, None), (0, 1)]:
            [choice] = await choices(app, prompt="ab", echo=True, logprobs=given)
            if expected is None:
                assert choice["logprobs"] is None
            else:
                assert len(choice["logprobs"]["top_logprobs"][1]) == expected

    with_app(use)


def test_every_logprob_is_allowed_where_the_limit_is_the_vocabulary() -> None:
    async def use(app: Running) -> None:
        [choice] = await choices(app, prompt="ab", prompt_logprobs=-1)
        assert len(choice["prompt_logprobs"][1]) == 257

    with_app(use, max_logprobs=257)


def test_prompt_logprobs_alone_and_beside_an_echo() -> None:
    """The actual token first, then the k best, by id; what is in `logprobs` does not depend on it."""

    async def use(app: Running) -> None:
        for k in (0, 1, 2):
            [choice] = await choices(app, prompt="ab", max_tokens=0, prompt_logprobs=k)
            assert choice["logprobs"] is None
            first, entries = choice["prompt_logprobs"]
            assert first is None
            actual = {"logprob": -98 / 256, "rank": 99, "decoded_token": "b"}
            best = {
                str(i): {"logprob": -i / 256, "rank": i + 1, "decoded_token": chr(i)}
                for i in range(k)
            }
            assert list(entries.items()) == [("98", actual), *best.items()]
        # The actual token is the best one: named once.
        [choice] = await choices(app, prompt="a\0", max_tokens=0, prompt_logprobs=2)
        assert list(choice["prompt_logprobs"][1]) == ["0", "1"]
        [plain] = await choices(app, prompt="ab", echo=True, logprobs=1)
        [both] = await choices(app, prompt="ab", echo=True, logprobs=1, prompt_logprobs=2)
        assert both["logprobs"] == plain["logprobs"]
        assert "prompt_logprobs" not in plain or plain["prompt_logprobs"] is None

    with_app(use)


def test_text_ids_and_offsets_with_a_bos_that_the_text_has_not() -> None:
    """The BOS is in all four arrays and has no width in the text."""

    async def use(app: Running) -> None:
        [choice] = await choices(
            app, prompt="Answer", echo=True, max_tokens=0, logprobs=0, return_token_ids=True
        )
        assert choice["text"] == "Answer"
        assert choice["logprobs"]["tokens"] == ["<s>", "Answer"]
        assert choice["logprobs"]["text_offset"] == [0, 0]
        assert choice["prompt_token_ids"][0] == 0
        again = await choices(app, prompt="<s>Answer", echo=True, return_token_ids=True)
        assert again[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        without = await choices(
            app, prompt="Answer", echo=True, return_token_ids=True, add_special_tokens=False
        )
        assert without[0]["prompt_token_ids"] == choice["prompt_token_ids"][1:]

    with_app(use, tokenizer=tiny_tokenizers.byte_level(add_bos=True))


def test_the_flag_sets_what_a_request_does_not_say() -> None:
    async def use(app: Running) -> None:
        for given, expected in [({}, 1), ({"add_special_tokens": True}, 2)]:
            [choice] = await choices(
                app, prompt="Answer", echo=True, return_token_ids=True, **given
            )
            assert len(choice["prompt_token_ids"]) == expected

    with_app(
        use,
        tokenizer=tiny_tokenizers.byte_level(add_bos=True),
        completions_add_special_tokens=False,
    )


@pytest.mark.parametrize("text", ["true true", "é👍🏽 true", " true", "t"])
def test_offsets_of_sentencepiece(text: str) -> None:
    """The space that it puts before the first word is not in the text; a character may be many
    tokens."""

    async def use(app: Running) -> None:
        [choice] = await choices(
            app, prompt=text, echo=True, max_tokens=1, logprobs=1, return_token_ids=True
        )
        found, ids = choice["logprobs"], choice["prompt_token_ids"]
        assert choice["text"].startswith(text)
        assert found["text_offset"] == sorted(found["text_offset"])
        assert found["text_offset"][-1] == len(text)
        for name, offset in list(zip(found["tokens"], found["text_offset"], strict=True))[2:]:
            if "\N{REPLACEMENT CHARACTER}" not in name:
                assert choice["text"][offset : offset + len(name)] == name
        assert ids[0] == 1
        assert len(found["tokens"]) == len(ids) + 1

    with_app(use, tokenizer=tiny_tokenizers.sentencepiece())


def test_offsets_where_the_tokenizer_changes_what_it_reads() -> None:
    async def use(app: Running) -> None:
        [choice] = await choices(app, prompt="ANSWER An", echo=True, max_tokens=1, logprobs=1)
        assert choice["text"].startswith("ANSWER An")
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == [*range(9), 9]

    with_app(use, tokenizer=tiny_tokenizers.lowercasing())


def test_a_character_split_between_prompt_and_new_token() -> None:
    async def use(app: Running) -> None:
        [choice] = await choices(app, prompt=[65, 0xC3], echo=True, max_tokens=1, logprobs=1)
        assert choice["text"] == "A\N{REPLACEMENT CHARACTER}\x00"
        assert choice["logprobs"]["text_offset"] == [0, 1, 1]
        [new] = await choices(app, prompt=[65, 0xC3], max_tokens=1, logprobs=1)
        assert new["text"] == "\N{REPLACEMENT CHARACTER}\x00"
        assert new["logprobs"]["text_offset"] == [0]

    with_app(use)


def test_truncation_of_prompts() -> None:
    async def use(app: Running) -> None:
        for side, kept in [(None, "cdef"), ("left", "cdef"), ("right", "abcd")]:
            [choice] = await choices(
                app, prompt="abcdef", echo=True, truncate_prompt_tokens=4, truncation_side=side
            )
            assert choice["text"] == kept
        [choice] = await choices(
            app, prompt="a" * MAX_MODEL_LEN, max_tokens=1, truncate_prompt_tokens=-1, logprobs=0
        )
        assert len(choice["logprobs"]["tokens"]) == 1
        assert (await complete(app, prompt="a", truncate_prompt_tokens=0)).status_code == 400

    with_app(use)


def test_the_model_s_limit_counts_the_new_token() -> None:
    async def use(app: Running) -> None:
        for length, new, status in [
            (MAX_MODEL_LEN, 0, 200),
            (MAX_MODEL_LEN, 1, 400),
            (MAX_MODEL_LEN - 1, 1, 200),
            (MAX_MODEL_LEN + 1, 0, 400),
        ]:
            body = {"prompt": [[1], [65] * length], "echo": True, "max_tokens": new, "logprobs": 1}
            response = await complete(app, **body)
            assert response.status_code == status
            if status == 400:
                error = error_of(response)
                assert error.param == "prompt[1]"
                assert error.code == "context_length_exceeded"
                assert str(length) in error.message
                assert str(MAX_MODEL_LEN) in error.message

    with_app(use)


# --- what is refused ---


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], []], "prompt[1]"),
        ([["a"]], "prompt[0][0]"),
        ([[1, [2]]], "prompt[0][1]"),
        ([1, True], "prompt[1]"),
        ([1, 2.0], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        ([[1, 257]], "prompt[0][1]"),
        ([10**7], "prompt[0]"),
        ([2**31], "prompt[0]"),
        ([2**63], "prompt[0]"),
        ([10**30], "prompt[0]"),
        ([], "prompt"),
        ("", "prompt"),
        (["a", ""], "prompt[1]"),
        (None, "prompt"),
        (3, "prompt"),
        ({}, "prompt"),
        ([None], "prompt[0]"),
    ],
)
def test_prompts_that_are_none_of_the_four_shapes(prompt: Any, param: str) -> None:
    async def use(app: Running) -> None:
        response = await complete(app, prompt=prompt, echo=True, logprobs=1)
        assert response.status_code == 400, response.text
        assert error_of(response).param == param
        assert app.scorer.batches == []

    with_app(use)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 2),
        ("max_tokens", -1),
        ("max_tokens", "1"),
        ("n", 2),
        ("n", 0),
        ("best_of", 3),
        ("stream", True),
        ("suffix", "x"),
        ("logit_bias", {"5": 1.0}),
        ("allowed_token_ids", [1]),
        ("logprob_token_ids", [1]),
        ("response_format", {"type": "json_object"}),
        ("use_beam_search", True),
        ("logprobs", "5"),
        ("logprobs", 1.5),
        ("logprobs", -2),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", True),
        ("truncate_prompt_tokens", -2),
        ("truncation_side", "middle"),
        ("echo", "yes"),
        ("add_special_tokens", 1),
        ("model", "gpt-2"),
    ],
)
def test_what_would_change_the_answer_and_is_not_done_is_refused(name: str, value: Any) -> None:
    async def use(app: Running) -> None:
        response = await complete(app, prompt="abc", **{name: value})
        assert response.status_code == (404 if name == "model" else 400), response.text
        error = error_of(response)
        assert error.param == name
        assert name in error.message or name == "model"

    with_app(use)


def test_fields_that_change_nothing_are_accepted_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(app: Running) -> None:
        harmless = {"seed": 1, "user": "me", "top_p": 0.5, "stop": ["x"], "n": 1, "best_of": 1}
        harmless |= {"temperature": 0.7, "stream": False, "suffix": None, "a" * 100: 1}
        harmless |= {new: 1, "prompt_logprob": 5}
        plain = await choices(app, prompt="abc", echo=True, logprobs=1)
        for _ in range(2):
            assert await choices(app, prompt="abc", echo=True, logprobs=1, **harmless) == plain

    # A process names each but once, and other tests send fields too.
    new = f"field_{uuid.uuid4().hex[:8]}"
    with caplog.at_level("INFO", "mlxscore"):
        with_app(use)
    named = [r.getMessage() for r in caplog.records if "ignored" in r.getMessage()]
    assert len([line for line in named if f"'{new}'" in line]) == 1
    assert all(len(line) < 200 for line in named)


def test_one_bad_prompt_fails_the_whole_request_and_no_other() -> None:
    async def use(app: Running) -> None:
        bad, good = await asyncio.gather(
            complete(app, prompt=["abc", "x" + chr(NAN)], echo=True, logprobs=1),
            complete(app, prompt="abc", echo=True, logprobs=1),
        )
        assert bad.status_code == 500
        assert error_of(bad).param == "prompt[1]"
        assert error_of(bad).code == "non_finite_logits"
        assert good.status_code == 200

    with_app(use)


def test_ids_are_used_as_given() -> None:
    async def use(app: Running) -> None:
        given = [BOS, BOS, 65]
        [choice] = await choices(app, prompt=given, echo=True, return_token_ids=True)
        assert choice["prompt_token_ids"] == given
        assert choice["text"] == "<s><s>A"

    with_app(use)


def test_usage_and_request_id() -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(
            "/v1/completions",
            json={"prompt": ["abc", "de"], "echo": True, "max_tokens": 1, "logprobs": 1},
            headers={"X-Request-Id": "mine"},
        )
        assert response.headers["x-request-id"] == "mine"
        usage = response.json()["usage"]
        assert usage["prompt_tokens"] == 5
        assert usage["completion_tokens"] == 2
        assert usage["total_tokens"] == 7
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}

    with_app(use)


def test_a_large_echo_is_written_off_the_event_loop() -> None:
    """Many positions, in order, and each a finite number."""

    async def use(app: Running) -> None:
        prompts = [np.random.default_rng(i).integers(32, 127, 500).tolist() for i in range(40)]
        found = await choices(app, prompt=prompts, echo=True, max_tokens=1, logprobs=5)
        for prompt, choice in zip(prompts, found, strict=True):
            values = choice["logprobs"]["token_logprobs"]
            assert values[1:-1] == [-i / 256 for i in prompt[1:]]
            assert all(map(math.isfinite, values[1:]))

    with_app(use)
