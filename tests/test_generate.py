"""`POST /generate` as SGLang's clients and lm-evaluation-harness's `sglang-generate` send and read it."""

import re
from typing import Any

import httpx
import pytest
import tiny_tokenizers
from fakes import (
    BOS,
    INFINITE,
    MAX_MODEL_LEN,
    NAN,
    VOCAB_SIZE,
    Running,
    byte_tokenizer,
    loglikelihood,
    with_app,
)
from pydantic import TypeAdapter
from server_process import ServerProcess

from mlxscore_client import wire
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.generations import generations
from mlxscore_server.settings import Settings
from mlxscore_server.tokens import Encoder

ONE = {"max_new_tokens": 1, "temperature": 0}
NONE = {"max_new_tokens": 0}
ANSWER: TypeAdapter[Any] = TypeAdapter(wire.GenerateResponse | list[wire.GenerateResponse])


async def ask(app: Running, **body: Any) -> Any:
    response = await app.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    ANSWER.validate_json(response.content)
    return response.json()


async def refused(app: Running, **body: Any) -> wire.ErrorBody:
    response = await app.client.post("/generate", json=body)
    error = wire.ErrorResponse.model_validate_json(response.content).error
    assert response.status_code == 400, response.text
    assert error.type == "invalid_request_error"
    assert error.param is None or error.param in error.message
    assert not app.scorer.batches
    return error


# --- lm-evaluation-harness 0.4.13, model type sglang-generate ---


def lm_eval_body(batch: list[list[int]]) -> dict[str, Any]:
    """What it posts for loglikelihoods: always a list of id lists, also for a batch of one."""
    return {
        "input_ids": batch,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
        "return_logprob": True,
    }


def lm_eval_reads(answers: list[Any], context_lengths: list[int]) -> list[tuple[float, bool]]:
    """How it cuts the answer: by the context's length from the left, to the very end.

    Its greedy flag says whether no token is the best one (it compares with `!=`), which no server can
    mend.
    """
    read: list[tuple[float, bool]] = []
    for one, length in zip(answers, context_lengths, strict=True):
        entries = one["meta_info"]["input_token_logprobs"][length:]
        tops = one["meta_info"]["input_top_logprobs"][length:]
        flag = all(entry[1] != top[0][1] for entry, top in zip(entries, tops, strict=True))
        read.append((sum(entry[0] for entry in entries), flag))
    return read


@pytest.mark.parametrize("batch_size", [1, 4])
def test_what_lm_evaluation_harness_sends_and_slices(batch_size: int) -> None:
    cases = [("Q: 1+1=", "2"), ("x", " a long answer é"), ("ab", "\0"), ("c", "\0\0d")]
    expected = [(loglikelihood(target), "\0" not in target) for _, target in cases]

    async def use(app: Running) -> None:
        read: list[tuple[float, bool]] = []
        for at in range(0, len(cases), batch_size):
            chunk = cases[at : at + batch_size]
            batch = [list((context + target).encode()) for context, target in chunk]
            # It sends an empty token where no key is set.
            response = await app.client.post(
                "/generate", json=lm_eval_body(batch), headers={"Authorization": "Bearer "}
            )
            assert response.status_code == 200
            lengths = [len(context.encode()) for context, _ in chunk]
            read += lm_eval_reads(response.json(), lengths)
        assert read == expected

    with_app(use)


def test_lm_evaluation_harness_gets_the_numbers_of_score(server: ServerProcess) -> None:
    cases = [
        ("The capital of France is", " Paris"),
        ("Question: Is water wet?\nAnswer:", " yes, it is"),
        ("Été", " à Genève 日本"),
    ]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        echo = {"echo": True, "return_token_ids": True}
        lists: list[list[list[int]]] = []
        for texts in ([a for a, _ in cases], [b for _, b in cases]):
            answer = client.post("/v1/completions", json={"prompt": texts, **echo}).json()
            lists.append([choice["prompt_token_ids"] for choice in answer["choices"]])
        contexts, targets = lists
        batch = [a + b for a, b in zip(contexts, targets, strict=True)]
        answer = client.post("/generate", json=lm_eval_body(batch)).json()
        read = lm_eval_reads(answer, [len(ids) for ids in contexts])
        items = [{"context": a, "continuation": b} for a, b in zip(contexts, targets, strict=True)]
        scored = client.post("/score", json={"items": items, "return_tokens": True}).json()
    for one, (value, none_greedy), result in zip(answer, read, scored["results"], strict=True):
        (score,) = result["scores"]
        assert value == pytest.approx(score["loglikelihood"], abs=5e-5)
        assert none_greedy == all(token["rank"] > 1 for token in score["tokens"])
        meta = one["meta_info"]
        best_logprob, best_id, _ = meta["output_top_logprobs"][0][0]
        assert [[best_logprob, best_id, None]] == meta["output_token_logprobs"]
        assert one["output_ids"] == [best_id]
        assert one["text"]


# --- SGLang's own shape ---


def test_the_whole_answer_to_one_prompt() -> None:
    async def use(app: Running) -> None:
        answer = await ask(
            app,
            text="abc",
            sampling_params=ONE,
            return_logprob=True,
            logprob_start_len=1,
            top_logprobs_num=2,
            return_text_in_logprobs=True,
            rid="mine",
        )
        best = [[0.0, 0, "\0"], [-1 / 256, 1, "\x01"]]
        assert answer == {
            "text": "\0",
            "output_ids": [0],
            "meta_info": {
                "id": "mine",
                "finish_reason": {"type": "length", "length": 1},
                "prompt_tokens": 3,
                "completion_tokens": 1,
                "cached_tokens": 0,
                "input_token_logprobs": [[None, 98, "b"], [-99 / 256, 99, "c"]],
                "output_token_logprobs": [[0.0, 0, "\0"]],
                "input_top_logprobs": [None, best],
                "output_top_logprobs": [best],
            },
        }

    with_app(use)


def test_a_list_is_answered_with_a_list_and_no_logprobs_with_none() -> None:
    async def use(app: Running) -> None:
        one = await ask(app, input_ids=[97, 98], sampling_params=ONE)
        assert set(one["meta_info"]) == {
            "id",
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
        }
        assert re.fullmatch("[0-9a-f]{32}", one["meta_info"]["id"])
        (listed,) = await ask(app, input_ids=[[97, 98]], sampling_params=ONE)
        assert listed["meta_info"]["id"] != one["meta_info"]["id"]
        assert listed["output_ids"] == one["output_ids"] == [0]
        (listed,) = await ask(app, text=["ab"], sampling_params=NONE)
        assert (listed["text"], listed["output_ids"]) == ("", [])
        assert listed["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        assert listed["meta_info"]["completion_tokens"] == 0

    with_app(use)


@pytest.mark.parametrize("start", [0, 1, 2, -1, None])
@pytest.mark.parametrize("new", [0, 1])
def test_the_entry_at_the_start_is_null_and_what_follows_is_scored(
    start: int | None, new: int
) -> None:
    async def use(app: Running) -> None:
        answer = await ask(
            app,
            text="abc",
            sampling_params={"max_new_tokens": new},
            return_logprob=True,
            logprob_start_len=start,
            top_logprobs_num=1,
        )
        first = 2 if start in (-1, None) else start
        ids = [97, 98, 99][first:]
        meta = answer["meta_info"]
        assert meta["input_token_logprobs"] == [
            [None, ids[0], None],
            *([-i / 256, i, None] for i in ids[1:]),
        ]
        assert meta["input_top_logprobs"] == [None] + [[[0.0, 0, None]]] * (len(ids) - 1)
        assert meta["output_token_logprobs"] == [[0.0, 0, None]] * new
        assert meta["output_top_logprobs"] == [[[0.0, 0, None]]] * new
        # Nothing to score, nothing computed.
        assert bool(app.scorer.batches) == (new == 1 or first < 2)

    with_app(use)


def test_a_prompt_of_one_token() -> None:
    async def use(app: Running) -> None:
        for new in (0, 1):
            answer = await ask(
                app,
                input_ids=[97],
                sampling_params={"max_new_tokens": new},
                return_logprob=True,
                logprob_start_len=0,
            )
            assert answer["meta_info"]["input_token_logprobs"] == [[None, 97, None]]
            assert answer["output_ids"] == [0] * new

    with_app(use)


def test_ids_after_the_prompt_read_it_once() -> None:
    async def use(app: Running) -> None:
        for new in (0, 1):
            app.scorer.batches.clear()
            answer = await ask(
                app,
                text="abc",
                sampling_params={"max_new_tokens": new},
                return_logprob=True,
                token_ids_logprob=[65, 0, 65],
                return_text_in_logprobs=True,
            )
            meta = answer["meta_info"]
            assert meta["input_token_ids_logprobs"] == [None]
            assert meta["output_token_ids_logprobs"] == [
                [[-65 / 256, 65, "A"], [0.0, 0, "\0"], [-65 / 256, 65, "A"]]
            ]
            assert len(meta["output_token_logprobs"]) == new
            assert sum(batch.computed_tokens for batch in app.scorer.batches) == 3
        # Not asked for logprobs: SGLang ignores the ids, and so do we.
        answer = await ask(app, text="abc", sampling_params=ONE, token_ids_logprob=[65])
        assert "output_token_ids_logprobs" not in answer["meta_info"]
        answer = await ask(
            app, text="abc", sampling_params=ONE, return_logprob=True, token_ids_logprob=[]
        )
        assert "output_token_ids_logprobs" not in answer["meta_info"]

    with_app(use)


def test_a_batch_may_give_each_prompt_its_own() -> None:
    async def use(app: Running) -> None:
        one, two, three = await ask(
            app,
            text=["abc", "de", "f"],
            sampling_params=[NONE, ONE, ONE],
            return_logprob=[True, True, False],
            logprob_start_len=[0, -1, 0],
            top_logprobs_num=[1, 0, 2],
            token_ids_logprob=[[], [65], [66]],
            rid=["x", "y", "z"],
        )
        meta = one["meta_info"]
        assert meta["id"] == "x"
        assert [entry[1] for entry in meta["input_token_logprobs"]] == [97, 98, 99]
        assert (one["output_ids"], meta["output_token_logprobs"]) == ([], [])
        assert len(meta["input_top_logprobs"]) == 3
        assert "input_token_ids_logprobs" not in meta
        meta = two["meta_info"]
        assert (meta["id"], two["output_ids"]) == ("y", [0])
        assert meta["input_token_logprobs"] == [[None, 101, None]]
        assert meta["output_token_ids_logprobs"] == [[[-65 / 256, 65, None]]]
        assert "input_top_logprobs" not in meta
        assert "input_token_logprobs" not in three["meta_info"]
        assert three["output_ids"] == [0]
        # One name for a batch is numbered, as SGLang does it.
        answers = await ask(app, text=["a", "b"], sampling_params=ONE, rid="r")
        assert [answer["meta_info"]["id"] for answer in answers] == ["r_0", "r_1"]

    with_app(use)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("sampling_params", [ONE], "1 entries for 2 prompts"),
        ("return_logprob", [True] * 3, "3 entries for 2 prompts"),
        ("logprob_start_len", [0], "1 entries for 2 prompts"),
        ("top_logprobs_num", [], "0 entries for 2 prompts"),
        ("token_ids_logprob", [[1], [2], [3]], "3 entries for 2 prompts"),
        ("rid", ["x"], "1 entries for 2 prompts"),
    ],
)
def test_a_list_of_another_length_or_for_a_single_prompt(
    field: str, value: list[Any], says: str
) -> None:
    async def use(app: Running) -> None:
        good = {"sampling_params": ONE, "return_logprob": True}
        error = await refused(app, text=["a", "b"], **(good | {field: value}))
        assert error.param == field
        assert says in error.message
        error = await refused(app, text="a", **(good | {field: value}))
        assert error.param == field
        assert "one prompt" in error.message

    with_app(use)


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"text": None}, None, "neither"),
        ({"input_ids": [1]}, None, "both"),
        ({"text": 5}, "text", "string"),
        ({"text": []}, "text", "empty"),
        ({"text": ["a", 5]}, "text[1]", "string"),
        ({"text": ["a", ""]}, "text[1]", "empty"),
        ({"text": ""}, "text", "empty"),
        ({"text": "a" * (MAX_MODEL_LEN)}, "text", "1000"),
        ({"sampling_params": None}, "sampling_params.max_new_tokens", "required"),
        ({"sampling_params": {}}, "sampling_params.max_new_tokens", "required"),
        ({"sampling_params": {"max_new_tokens": 2}}, "sampling_params.max_new_tokens", "scores"),
        ({"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", "0"),
        ({"sampling_params": {"max_new_tokens": "1"}}, "sampling_params.max_new_tokens", "integer"),
        ({"sampling_params": 5}, "sampling_params", "object"),
        ({"return_logprob": "yes"}, "return_logprob", "boolean"),
        ({"logprob_start_len": -2}, "logprob_start_len", "-1"),
        ({"logprob_start_len": 3}, "logprob_start_len", "3 tokens"),
        ({"logprob_start_len": 0.5}, "logprob_start_len", "integer"),
        ({"top_logprobs_num": -1}, "top_logprobs_num", "0"),
        ({"top_logprobs_num": 21}, "top_logprobs_num", "--max-logprobs"),
        ({"token_ids_logprob": 65}, "token_ids_logprob", "list"),
        ({"token_ids_logprob": [65, "66"]}, "token_ids_logprob[1]", "integer"),
        ({"token_ids_logprob": [65, VOCAB_SIZE]}, "token_ids_logprob[1]", "257"),
        ({"token_ids_logprob": [65, -1]}, "token_ids_logprob[1]", "0"),
        ({"return_text_in_logprobs": 1}, "return_text_in_logprobs", "boolean"),
        ({"rid": 5}, "rid", "string"),
        ({"stream": True}, "stream", "not supported"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], param: str | None, says: str) -> None:
    async def use(app: Running) -> None:
        good = {"text": "abc", "sampling_params": ONE, "return_logprob": True}
        error = await refused(app, **(good | change))
        assert error.param == param
        assert says in error.message
        await ask(app, **good)

    with_app(use)


@pytest.mark.parametrize(
    ("input_ids", "param"),
    [
        ([], "input_ids"),
        ([[97], []], "input_ids[1]"),
        ([97, "98"], "input_ids[1]"),
        ([97, True], "input_ids[1]"),
        ([97, [98]], "input_ids[1]"),
        ([[97], 98], "input_ids[1]"),
        ([[97], [98, -1]], "input_ids[1][1]"),
        ([[97], [98, VOCAB_SIZE]], "input_ids[1][1]"),
        ([[97], [98] * (MAX_MODEL_LEN + 1)], "input_ids[1]"),
        ("abc", "input_ids"),
    ],
)
def test_bad_ids_name_their_element(input_ids: Any, param: str) -> None:
    async def use(app: Running) -> None:
        error = await refused(app, input_ids=input_ids, sampling_params=NONE)
        assert error.param == param

    with_app(use)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_embeds", [[0.5]]),
        ("image_data", "x.png"),
        ("video_data", "x.mp4"),
        ("audio_data", "x.wav"),
        ("lora_path", "adapter"),
        ("session_params", {"id": 1}),
        ("custom_logit_processor", "code"),
        ("return_hidden_states", True),
    ],
)
def test_what_would_change_the_answer_is_refused(name: str, value: Any) -> None:
    async def use(app: Running) -> None:
        error = await refused(app, text="a", sampling_params=ONE, **{name: value})
        assert (error.param, error.code) == (name, "unsupported")
        await ask(app, text="a", sampling_params=ONE, **{name: None})

    with_app(use)


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("n", 2, 1),
        ("min_new_tokens", 1, 0),
        ("frequency_penalty", 0.5, 0),
        ("presence_penalty", -0.5, 0.0),
        ("repetition_penalty", 1.1, 1),
        ("logit_bias", {"5": 1.0}, None),
        ("json_schema", "{}", None),
        ("regex", "a+", None),
        ("ebnf", "root ::= 'a'", None),
        ("structural_tag", "{}", None),
    ],
)
def test_sampling_that_would_change_the_token_is_refused(
    name: str, value: Any, neutral: Any
) -> None:
    async def use(app: Running) -> None:
        error = await refused(app, text="a", sampling_params=ONE | {name: value})
        assert (error.param, error.code) == (f"sampling_params.{name}", "unsupported")
        error = await refused(app, text=["a", "b"], sampling_params=[ONE, ONE | {name: value}])
        assert error.param == f"sampling_params[1].{name}"
        await ask(app, text="a", sampling_params=ONE | {name: neutral})

    with_app(use)


def test_what_only_shapes_random_sampling_is_ignored() -> None:
    async def use(app: Running) -> None:
        plain, shaped = [
            await ask(app, text="ab", sampling_params=params, return_logprob=True, rid="r")
            for params in (ONE, ONE | {"temperature": 0.7, "top_p": 0.5, "top_k": 3, "stop": ["x"]})
        ]
        assert plain == shaped

    with_app(use)


def test_ids_at_the_prompt_s_own_positions_are_refused() -> None:
    async def use(app: Running) -> None:
        body = {"text": "abc", "sampling_params": ONE, "return_logprob": True}
        error = await refused(app, **body, token_ids_logprob=[65], logprob_start_len=0)
        assert (error.param, error.code) == ("token_ids_logprob", "unsupported")
        assert "logprob_start_len must be -1" in error.message
        # The last token's own entry is null anyway.
        answer = await ask(app, **body, token_ids_logprob=[65], logprob_start_len=2)
        assert answer["meta_info"]["output_token_ids_logprobs"] == [[[-65 / 256, 65, None]]]

    with_app(use)


def test_many_ids_after_a_long_prompt_are_refused_before_rows_are_made() -> None:
    async def use(app: Running) -> None:
        body = {"text": "a" * 99, "sampling_params": ONE, "return_logprob": True}
        error = await refused(app, **body, token_ids_logprob=[65] * 11)
        assert error.param == "token_ids_logprob"
        assert "1177" in error.message and "--max-queued-tokens" in error.message
        await ask(app, **body, token_ids_logprob=[65] * 9)

    with_app(use, max_queued_tokens=1000)


def test_the_model_s_limit_counts_the_new_token() -> None:
    async def use(app: Running) -> None:
        longest = [97] * MAX_MODEL_LEN
        body = {"return_logprob": True, "logprob_start_len": MAX_MODEL_LEN - 2}
        for extra in (
            {"sampling_params": ONE},
            {"token_ids_logprob": [1], "logprob_start_len": -1},
        ):
            error = await refused(
                app, **({"input_ids": longest, "sampling_params": NONE} | body | extra)
            )
            assert (error.param, error.code) == ("input_ids", "context_length_exceeded")
            assert "1000 tokens" in error.message
        answer = await ask(app, input_ids=longest, sampling_params=NONE, **body)
        assert answer["meta_info"]["input_token_logprobs"][1] == [-97 / 256, 97, None]
        await ask(app, input_ids=longest[1:], sampling_params=ONE, **body)

    with_app(use)


def test_text_gets_the_tokenizers_special_tokens_and_never_two() -> None:
    tokenizer = tiny_tokenizers.byte_level(add_bos=True)
    encoder = Encoder(tokenizer, num_embeddings=len(tokenizer), max_model_len=None)

    def ids(**body: Any) -> list[list[int]]:
        request = wire.GenerateRequest.model_validate({"sampling_params": ONE} | body)
        return [one.ids.tolist() for one in generations(request, encoder, Settings())]

    plain = tokenizer.encode("Answer", add_special_tokens=False)
    bos = tokenizer.bos_token_id
    with_bos, own_bos, empty = ids(text=["Answer", "<s>Answer", ""])
    assert with_bos == own_bos == [bos, *plain] == tokenizer.encode("Answer")
    assert empty == [bos]
    # Ids are used as given.
    assert ids(input_ids=[plain, [bos, bos, *plain]]) == [plain, [bos, bos, *plain]]
    bytes_only = Encoder(byte_tokenizer(), num_embeddings=BOS + 1, max_model_len=None)
    with pytest.raises(InvalidRequest, match="text is empty"):
        generations(
            wire.GenerateRequest.model_validate({"text": "", "sampling_params": ONE}),
            bytes_only,
            Settings(),
        )


@pytest.mark.parametrize("bad", [NAN, INFINITE])
def test_a_number_that_is_not_finite_names_its_prompt(bad: int) -> None:
    async def use(app: Running) -> None:
        body = {
            # The first has no row, the second has two: a row's place is not its prompt's.
            "input_ids": [[97], [97, 98], [97, bad]],
            "sampling_params": [NONE, ONE, NONE],
            "return_logprob": True,
            "logprob_start_len": [0, -1, 0],
            "token_ids_logprob": [[], [65], []],
        }
        response = await app.client.post("/generate", json=body)
        error = wire.ErrorResponse.model_validate_json(response.content).error
        assert (response.status_code, error.code) == (500, "non_finite_logits")
        assert error.param == "input_ids[2]"

    with_app(use)


def test_the_schema_holds_the_request_and_its_example_works() -> None:
    async def use(app: Running) -> None:
        schema = (await app.client.get("/openapi.json")).json()
        known = schema["components"]["schemas"]
        assert {"GenerateRequest", "SamplingParams", "GenerateResponse"} <= set(known)
        wire.GenerateRequest.model_validate(known["GenerateRequest"]["examples"][0])
        operation = schema["paths"]["/generate"]["post"]
        ANSWER.validate_python(
            operation["responses"]["200"]["content"]["application/json"]["example"]
        )

    with_app(use)
