"""`POST /get_sequence_logprobs/` as TRL's own client sends and reads it (trl 1.1 to 1.10)."""

import asyncio
import base64
import math
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import (
    INFINITE,
    MAX_MODEL_LEN,
    NAN,
    VOCAB_SIZE,
    Running,
    with_app,
)
from server_process import ServerProcess

from mlxscore_client import wire
from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded
from mlxscore_server.settings import Settings

PATH = "/get_sequence_logprobs/"


def trl_body(
    sequences: list[list[int]],
    prompt_lengths: list[int],
    *,
    top_logprobs: int = 100,
    use_binary: bool = True,
) -> dict[str, Any]:
    """What TRL's client posts: all five fields, always."""
    return {
        "sequences": sequences,
        "prompt_lengths": prompt_lengths,
        "top_logprobs": top_logprobs,
        "temperature": 1.0,
        "response_format": "binary" if use_binary else "json",
    }


def trl_decoded(answer: dict[str, Any]) -> dict[str, list[np.ndarray]]:
    """The binary form as TRL's client reads it: one array a sequence, without the padding."""
    batch, longest, k = answer["shape"]

    def read(name: str, dtype: str, width: int) -> list[np.ndarray]:
        flat = np.frombuffer(base64.b64decode(answer[name]), dtype)
        rows = flat.reshape(batch, longest, width)
        lengths = answer["completion_lengths"]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    return {
        "logprobs": read("logprobs_b64", "<f4", k),
        "logprob_token_ids": read("token_ids_b64", "<i4", k),
        "actual_logprobs": read("actual_logprobs_b64", "<f4", 1),
        "actual_token_ids": read("actual_token_ids_b64", "<i4", 1),
    }


async def ask(app: Running, body: dict[str, Any]) -> dict[str, Any]:
    response = await app.client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    wire.SequenceLogprobsResponse.model_validate_json(response.content)
    return response.json()


def test_json_by_rank_with_the_actual_token_once() -> None:
    async def use(app: Running) -> None:
        answer = await ask(
            app, trl_body([[65, 66, 0], [70, 71]], [1, 1], top_logprobs=2, use_binary=False)
        )
        assert answer == {
            "logprobs": [
                # 66 is not among the two best and comes after them; 0 is, and comes once.
                [[0.0, -1 / 256, -66 / 256], [0.0, -1 / 256]],
                [[0.0, -1 / 256, -71 / 256]],
            ],
            "logprob_token_ids": [[[0, 1, 66], [0, 1]], [[0, 1, 71]]],
        }
        more = trl_body([[65, 7]], [1], top_logprobs=9, use_binary=False)
        assert (await ask(app, more))["logprob_token_ids"] == [[list(range(9))]]

    with_app(use)


def test_binary_arrays_and_their_padding() -> None:
    async def use(app: Running) -> None:
        sequences = [[65, 66, 67, 68], [70, 71], [72, 73]]
        answer = await ask(app, trl_body(sequences, [1, 1, 2], top_logprobs=2))
        assert answer["shape"] == [3, 3, 2]
        assert answer["completion_lengths"] == [3, 1, 0]
        nothing, no_token = [-math.inf, -math.inf], [0, 0]
        best, best_ids = [0.0, -1 / 256], [0, 1]

        def read(name: str, dtype: str, *shape: int) -> Any:
            return np.frombuffer(base64.b64decode(answer[name]), dtype).reshape(shape).tolist()

        assert read("logprobs_b64", "<f4", 3, 3, 2) == [
            [best, best, best],
            [best, nothing, nothing],
            [nothing, nothing, nothing],
        ]
        assert read("token_ids_b64", "<i4", 3, 3, 2) == [
            [best_ids, best_ids, best_ids],
            [best_ids, no_token, no_token],
            [no_token, no_token, no_token],
        ]
        assert read("actual_logprobs_b64", "<f4", 3, 3) == [
            [-66 / 256, -67 / 256, -68 / 256],
            [-71 / 256, -math.inf, -math.inf],
            [-math.inf] * 3,
        ]
        assert read("actual_token_ids_b64", "<i4", 3, 3) == [[66, 67, 68], [71, 0, 0], [0, 0, 0]]

    with_app(use)


@pytest.mark.parametrize("k", [0, 1])
def test_few_logprobs(k: int) -> None:
    async def use(app: Running) -> None:
        body = trl_body([[65, 66, 0]], [1], top_logprobs=k)
        decoded = trl_decoded(await ask(app, body))
        assert decoded["logprobs"][0].tolist() == [[0.0] * k] * 2
        assert decoded["logprob_token_ids"][0].tolist() == [[0] * k] * 2
        assert decoded["actual_logprobs"][0].tolist() == [[-66 / 256], [0.0]]
        assert decoded["actual_token_ids"][0].tolist() == [[66], [0]]
        lists = await ask(app, body | {"response_format": "json"})
        # The actual token is always there, once.
        second = {0: [0.0], 1: [0.0]}[k]
        assert lists["logprobs"] == [[[0.0] * k + [-66 / 256], second]]
        assert lists["logprob_token_ids"] == [[[0] * k + [66], [0]]]

    with_app(use)


def test_completions_without_tokens_compute_nothing() -> None:
    async def use(app: Running) -> None:
        body = trl_body([[65, 66], [67]], [2, 1], top_logprobs=2)
        answer = await ask(app, body)
        assert (answer["shape"], answer["completion_lengths"]) == ([2, 0, 2], [0, 0])
        assert answer["logprobs_b64"] == answer["actual_token_ids_b64"] == ""
        lists = await ask(app, body | {"response_format": "json"})
        assert lists == {"logprobs": [[], []], "logprob_token_ids": [[], []]}
        assert not app.scorer.batches

    with_app(use)


def test_the_slash_at_the_end_is_optional_and_json_is_the_default() -> None:
    async def use(app: Running) -> None:
        body = {"sequences": [[65, 66]], "prompt_lengths": [1], "top_logprobs": 1}
        one, two = [
            await app.client.post(path, json=body) for path in (PATH, PATH.removesuffix("/"))
        ]
        assert one.status_code == two.status_code == 200
        assert one.json() == two.json()
        assert one.json()["logprobs"] == [[[0.0, -66 / 256]]]
        schema = (await app.client.get("/openapi.json")).json()
        assert PATH in schema["paths"]
        assert PATH.removesuffix("/") not in schema["paths"]
        example = schema["components"]["schemas"]["SequenceLogprobsRequest"]["examples"][0]
        wire.SequenceLogprobsRequest.model_validate(example)

    with_app(use)


def test_as_many_logprobs_as_trl_asks_for() -> None:
    async def use(app: Running) -> None:
        body = trl_body([[65, 66]], [1])
        assert body["top_logprobs"] == 100
        for asked in (body, {name: body[name] for name in ("sequences", "prompt_lengths")}):
            response = await app.client.post(PATH, json=asked)
            error = wire.ErrorResponse.model_validate_json(response.content).error
            assert (response.status_code, error.param) == (400, "top_logprobs")
            assert "--max-logprobs" in error.message
            assert "100" in error.message and "20" in error.message

    with_app(use)

    async def allowed(app: Running) -> None:
        decoded = trl_decoded(await ask(app, trl_body([[65, 66]], [1])))
        assert decoded["logprob_token_ids"][0].tolist() == [list(range(100))]
        # More than there are tokens stays impossible.
        response = await app.client.post(PATH, json=trl_body([[65, 66]], [1], top_logprobs=258))
        assert response.status_code == 400
        assert str(VOCAB_SIZE) in response.json()["error"]["message"]

    with_app(allowed, max_logprobs=1000)


GOOD: dict[str, Any] = {
    "sequences": [[65, 66, 67], [68, 69]],
    "prompt_lengths": [1, 1],
    "top_logprobs": 1,
}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"sequences": None}, "sequences", "array"),
        ({"sequences": []}, "sequences", "empty"),
        ({"sequences": [[65, 66], []]}, "sequences[1]", "empty"),
        ({"sequences": [[65, 66], 67]}, "sequences[1]", "array"),
        ({"sequences": ["text", [65, 66]]}, "sequences[0]", "array"),
        ({"sequences": [[65, 66], [65, "66"]]}, "sequences[1][1]", "integer"),
        ({"sequences": [[65, 66], [65, True]]}, "sequences[1][1]", "integer"),
        ({"sequences": [[65, 66], [65, 6.5]]}, "sequences[1][1]", "integer"),
        ({"sequences": [[65, 66], [65, -1]]}, "sequences[1][1]", "-1"),
        ({"sequences": [[65, 66], [65, VOCAB_SIZE]]}, "sequences[1][1]", "257 tokens"),
        ({"sequences": [[65, 66], [65, 10**30]]}, "sequences[1][1]", "2147483647"),
        ({"sequences": [[65, 66], [65] * (MAX_MODEL_LEN + 1)]}, "sequences[1]", "1000"),
        ({"prompt_lengths": [1]}, "prompt_lengths", "1 entries and sequences 2"),
        ({"prompt_lengths": [1, 1, 1]}, "prompt_lengths", "3 entries and sequences 2"),
        ({"prompt_lengths": 1}, "prompt_lengths", "array"),
        ({"prompt_lengths": [1, 0]}, "prompt_lengths[1]", "greater than or equal to 1"),
        ({"prompt_lengths": [1, -1]}, "prompt_lengths[1]", "greater than or equal to 1"),
        ({"prompt_lengths": [1, 3]}, "prompt_lengths[1]", "sequences[1] has 2 tokens"),
        ({"prompt_lengths": [1, "1"]}, "prompt_lengths[1]", "integer"),
        ({"top_logprobs": -1}, "top_logprobs", "greater than or equal to 0"),
        ({"top_logprobs": 1.5}, "top_logprobs", "integer"),
        ({"top_logprobs": 21}, "top_logprobs", "--max-logprobs"),
        ({"temperature": 0.7}, "temperature", "only 1 is supported"),
        ({"temperature": 0}, "temperature", "only 1 is supported"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"response_format": "msgpack"}, "response_format", "'json' or 'binary'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], param: str, says: str) -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(PATH, json=GOOD | change)
        error = wire.ErrorResponse.model_validate_json(response.content).error
        assert (response.status_code, error.param) == (400, param), error.message
        assert says in error.message
        assert param in error.message
        assert not app.scorer.batches
        # Exactly as long as the model allows is fine, and so is the request without the change.
        longest = {
            "sequences": [[65] * MAX_MODEL_LEN, [1, 5]],
            "prompt_lengths": [MAX_MODEL_LEN, 1],
        }
        for body in (GOOD, GOOD | longest):
            assert (await app.client.post(PATH, json=body)).status_code == 200

    with_app(use)


@pytest.mark.parametrize("missing", ["sequences", "prompt_lengths"])
def test_what_is_missing_is_named(missing: str) -> None:
    async def use(app: Running) -> None:
        body = {name: value for name, value in GOOD.items() if name != missing}
        response = await app.client.post(PATH, json=body)
        error = wire.ErrorResponse.model_validate_json(response.content).error
        assert (response.status_code, error.param) == (400, missing)

    with_app(use)


@pytest.mark.parametrize("bad", [NAN, INFINITE])
@pytest.mark.parametrize("form", ["json", "binary"])
def test_a_number_that_is_not_finite_names_its_sequence(bad: int, form: str) -> None:
    async def use(app: Running) -> None:
        body = {
            # The first has no row of its own: a row's place is not its sequence's.
            "sequences": [[65], [65, 66], [65, bad]],
            "prompt_lengths": [1, 1, 1],
            "top_logprobs": 1,
            "response_format": form,
        }
        response = await app.client.post(PATH, json=body)
        error = wire.ErrorResponse.model_validate_json(response.content).error
        assert (response.status_code, error.code) == (500, "non_finite_logits")
        assert error.param == "sequences[2]"

    with_app(use)


def test_health_answers_with_a_slash_too() -> None:
    async def use(app: Running) -> None:
        response = await app.client.get("/health/")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})

    with_app(use)

    gate = threading.Event()

    def load() -> Loaded:
        gate.wait()
        raise RuntimeError("no model today")

    async def loading() -> None:
        settings = Settings()
        engine = Engine(settings, load)
        engine.start()
        transport = httpx.ASGITransport(create_app(engine, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            try:
                response = await client.get("/health/")
                assert (response.status_code, response.json()) == (503, {"status": "loading"})
                # TRL's client tries again on a 503.
                assert (await client.post(PATH, json=GOOD)).status_code == 503
            finally:
                gate.set()
            await engine.close()

    asyncio.run(loading())


def test_the_real_model_agrees_with_score(server: ServerProcess) -> None:
    """Binary, JSON, `/score` and what newer TRL clients ask of `/v1/completions`: the same numbers."""
    k = 5
    texts = ["The capital of France is Paris.", "Été 日本", "One two three four five six seven"]
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def post(path: str, body: dict[str, Any]) -> Any:
            response = client.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json()

        echoed = post("/v1/completions", {"prompt": texts, "echo": True, "return_token_ids": True})
        sequences = [choice["prompt_token_ids"] for choice in echoed["choices"]]
        lengths = [1, 3, len(sequences[2]) - 1]
        decoded = trl_decoded(post(PATH, trl_body(sequences, lengths, top_logprobs=k)))
        lists = post(PATH, trl_body(sequences, lengths, top_logprobs=k, use_binary=False))
        items = [
            {"context": ids[:n], "continuation": ids[n:]}
            for ids, n in zip(sequences, lengths, strict=True)
        ]
        results = post("/score", {"items": items, "top_logprobs": k})["results"]
        # trl 1.11 and later: no endpoint of its own any more, but vLLM's field.
        newer = post(
            "/v1/completions",
            {"prompt": sequences, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": k},
        )["choices"]
    for i, (ids, length) in enumerate(zip(sequences, lengths, strict=True)):
        tokens = results[i]["scores"][0]["tokens"]
        assert len(tokens) == len(ids) - length == len(decoded["logprobs"][i])
        for at, token in enumerate(tokens):
            best = [top["logprob"] for top in token["top"]]
            best_ids = [top["id"] for top in token["top"]]
            assert decoded["logprobs"][i][at] == pytest.approx(best, abs=2e-5)
            assert decoded["logprob_token_ids"][i][at].tolist() == best_ids
            assert decoded["actual_logprobs"][i][at, 0] == pytest.approx(token["logprob"], abs=2e-5)
            assert decoded["actual_token_ids"][i][at, 0] == token["id"] == ids[length + at]
            inside = token["id"] in best_ids
            assert lists["logprob_token_ids"][i][at] == (
                best_ids if inside else [*best_ids, token["id"]]
            )
            assert lists["logprobs"][i][at] == pytest.approx(
                best if inside else [*best, token["logprob"]], abs=2e-5
            )
            # Its rows read one token more: other shapes round differently.
            position = newer[i]["prompt_logprobs"][length + at]
            ranked = sorted(position.items(), key=lambda entry: entry[1]["rank"])[:k]
            assert [int(token_id) for token_id, _ in ranked] == best_ids
            assert [entry["logprob"] for _, entry in ranked] == pytest.approx(best, abs=5e-5)
            actual = position[str(token["id"])]["logprob"]
            assert actual == pytest.approx(token["logprob"], abs=5e-5)
