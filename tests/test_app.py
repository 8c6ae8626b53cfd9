"""The endpoints over the real engine; only the scorer is a fake, with answers known in advance."""

import asyncio
import json
import logging
import re
import threading

import httpx
import pytest
from fakes import (
    BOOM,
    DIE,
    INFINITE,
    MAX_MODEL_LEN,
    NAME,
    NAN,
    Running,
    error_of,
    loglikelihood,
    with_app,
)

from mlxscore_client import wire
from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded
from mlxscore_server.settings import Settings


def test_the_whole_answer() -> None:
    async def use(app: Running) -> None:
        response = await app.score(
            items=[
                {"context": "The capital is", "continuations": [" Paris", " Rome"], "id": "q1"},
                {"context": [65, 66], "continuation": [0, 0]},
            ]
        )
        assert response.status_code == 200
        body = response.json()
        assert re.fullmatch(r"score-\w+", body.pop("id"))
        assert isinstance(body.pop("created"), int)
        assert body == {
            "object": "score",
            "model": NAME,
            "system_fingerprint": "fp-bytes",
            "results": [
                {
                    "index": 0,
                    "id": "q1",
                    "context_tokens": 14,
                    "truncated_tokens": 0,
                    "scores": [
                        {
                            "index": 0,
                            "loglikelihood": loglikelihood(" Paris"),
                            "is_greedy": False,
                            "num_tokens": 6,
                            "num_bytes": 6,
                            "num_chars": 6,
                            "merged_boundary": False,
                        },
                        {
                            "index": 1,
                            "loglikelihood": loglikelihood(" Rome"),
                            "is_greedy": False,
                            "num_tokens": 5,
                            "num_bytes": 5,
                            "num_chars": 5,
                            "merged_boundary": False,
                        },
                    ],
                },
                {
                    "index": 1,
                    "context_tokens": 2,
                    "truncated_tokens": 0,
                    "scores": [
                        {
                            "index": 0,
                            "loglikelihood": 0.0,
                            "is_greedy": True,
                            "num_tokens": 2,
                            "num_bytes": 2,
                            "num_chars": 2,
                            "merged_boundary": False,
                        }
                    ],
                },
            ],
            "usage": {
                "prompt_tokens": 20 + 19 + 4,
                "total_tokens": 20 + 19 + 4,
                "computed_tokens": 19 + 18 + 3,
                "cached_tokens": 0,
            },
        }

    with_app(use)


def test_tokens_on_demand() -> None:
    async def use(app: Running) -> None:
        item = {"context": "caf", "continuation": "é!"}
        response = await app.score(items=[item], return_tokens=True)
        (score,) = response.json()["results"][0]["scores"]
        assert score["num_bytes"] == 3
        assert score["num_chars"] == 2
        assert score["tokens"] == [
            {"id": 0xC3, "text": "�", "bytes": [0xC3], "logprob": -0xC3 / 256, "rank": 0xC4},
            {"id": 0xA9, "text": "�", "bytes": [0xA9], "logprob": -0xA9 / 256, "rank": 0xAA},
            {"id": 0x21, "text": "!", "bytes": [0x21], "logprob": -0x21 / 256, "rank": 0x22},
        ]

    with_app(use)


def test_top_logprobs_bring_the_tokens_along() -> None:
    async def use(app: Running) -> None:
        response = await app.score(
            items=[{"context": "a", "continuation": "bc"}, {"context": "d", "continuation": "e"}],
            top_logprobs=3,
        )
        assert response.status_code == 200
        for result in response.json()["results"]:
            for token in result["scores"][0]["tokens"]:
                assert [top["id"] for top in token["top"]] == [0, 1, 2]
                assert [top["logprob"] for top in token["top"]] == [0.0, -1 / 256, -2 / 256]
                assert token["top"][1] == {
                    "id": 1,
                    "text": "\x01",
                    "bytes": [1],
                    "logprob": -1 / 256,
                }

    with_app(use)


def test_answers_are_what_wire_says_and_hold_no_nulls() -> None:
    def fields(kind: type[wire.Answer], value: wire.Answer) -> None:
        assert not value.model_extra, kind

    async def use(app: Running) -> None:
        items = [{"context": "a", "continuations": ["b", "cd"]} for _ in range(200)]
        response = await app.score(items=items, top_logprobs=20)  # large: built off the loop
        answer = wire.ScoreResponse.model_validate_json(response.content)
        fields(wire.ScoreResponse, answer)
        fields(wire.Usage, answer.usage)
        for result in answer.results:
            fields(wire.ScoreResult, result)
            for score in result.scores:
                fields(wire.Score, score)
                for token in score.tokens or []:
                    fields(wire.TokenScore, token)
                    for top in token.top or []:
                        fields(wire.TopLogprob, top)
        assert b"null" not in response.content
        assert json.loads(answer.model_dump_json(exclude_none=True)) == response.json()

    with_app(use)


def test_left_truncation_is_reported() -> None:
    async def use(app: Running) -> None:
        item = {"context": "x" * MAX_MODEL_LEN, "continuation": "yz"}
        response = await app.score(items=[item], truncation="left")
        (result,) = response.json()["results"]
        assert result["context_tokens"] == MAX_MODEL_LEN
        assert result["truncated_tokens"] == 2
        assert response.json()["usage"]["prompt_tokens"] == MAX_MODEL_LEN

    with_app(use)


def test_many_at_once_get_their_own_answers() -> None:
    async def use(app: Running) -> None:
        texts = [f" text {i}" for i in range(64)]
        responses = await asyncio.gather(
            *(app.score(items=[{"context": "c", "continuation": text}]) for text in texts)
        )
        for text, response in zip(texts, responses, strict=True):
            (score,) = response.json()["results"][0]["scores"]
            assert score["loglikelihood"] == loglikelihood(text)

    with_app(use)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/x.y+json", None]
)
def test_content_types_that_are_json(kind: str | None) -> None:
    async def use(app: Running) -> None:
        content = json.dumps({"items": [{"context": "a", "continuation": "b"}], "model": NAME})
        headers = {"content-type": kind} if kind else {}
        response = await app.client.post("/score", content=content, headers=headers)
        assert response.status_code == 200

    with_app(use)


def test_models_and_health() -> None:
    async def use(app: Running) -> None:
        health = await app.client.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        models = (await app.client.get("/v1/models")).json()
        assert models["object"] == "list"
        (card,) = models["data"]
        assert card["id"] == NAME
        assert (card["object"], card["owned_by"], card["root"]) == ("model", "mlxscore", NAME)
        assert card["max_model_len"] == MAX_MODEL_LEN
        assert card["self_check"]["padding"] == "left-padded"
        assert (await app.client.get(f"/v1/models/{NAME}")).json() == card
        other = await app.client.get("/v1/models/some-org/other")
        assert other.status_code == 404
        assert NAME in error_of(other).message

    with_app(use)


def test_health_answers_while_the_model_is_busy() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        assert (await app.client.get("/health")).status_code == 200
        assert not held.done()
        app.scorer.gate.set()
        assert (await held).status_code == 200

    with_app(use)


def test_every_answer_has_a_request_id() -> None:
    async def use(app: Running) -> None:
        for given, kept in [("job-7/a", True), ("two words", False), ("x" * 300, False)]:
            for path in ("/health", "/nowhere"):
                response = await app.client.get(path, headers={"X-Request-Id": given})
                assert (response.headers["x-request-id"] == given) == kept
                assert re.fullmatch(r"[\x21-\x7e]{1,128}", response.headers["x-request-id"])
        one, two = [await app.client.get("/health") for _ in range(2)]
        assert one.headers["x-request-id"] != two.headers["x-request-id"]

    with_app(use)


def test_while_loading_and_draining_and_after_the_end() -> None:
    gate = threading.Event()

    def load() -> Loaded:
        gate.wait()
        raise RuntimeError("no model today")

    async def main() -> None:
        settings = Settings()
        engine = Engine(settings, load)
        engine.start()
        transport = httpx.ASGITransport(create_app(engine, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def refused(state: str, code: str) -> httpx.Response:
                health = await client.get("/health")
                assert (health.status_code, health.json()) == (503, {"status": state})
                response = await client.post("/score", content=b"[not even read")
                assert response.status_code == 503
                assert error_of(response).code == code
                return response

            try:
                assert int((await refused("loading", "loading")).headers["retry-after"]) >= 1
                assert (await client.get("/v1/models")).status_code == 503
            finally:
                gate.set()
            await engine.stopped.wait()
            await refused("failed", "engine_stopped")
            await engine.close()

    asyncio.run(main())

    async def use(app: Running) -> None:
        await app.engine.drain(60)
        response = await app.client.post("/score", content=b"[not even read")
        assert (response.status_code, error_of(response).code) == (503, "draining")
        assert int(response.headers["retry-after"]) >= 1
        assert (await app.client.get("/health")).json() == {"status": "draining"}

    with_app(use)


def test_a_full_queue_is_a_429() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        item = {"context": "a", "continuation": "b" * 8}
        waiting = asyncio.create_task(app.score(items=[item]))
        await app.waiting(8)
        response = await app.score(items=[item])
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        error = error_of(response)
        assert (error.type, error.code) == ("overloaded_error", "queue_full")
        app.scorer.gate.set()
        assert (await held).status_code == (await waiting).status_code == 200

    with_app(use, max_queued_tokens=10)


@pytest.mark.parametrize("bad", [NAN, INFINITE])
def test_a_number_that_is_not_finite_names_its_continuation_and_harms_nobody(bad: int) -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        items = [
            {"context": "a", "continuation": "b"},
            {"context": "a", "continuations": ["b", "c" + chr(bad)]},
        ]
        failing = asyncio.create_task(app.score(items=items))
        fine = asyncio.create_task(app.score(items=items[:1]))
        await app.waiting(1 + 1 + 2 + 1)
        app.scorer.gate.set()
        await held
        response = await failing
        assert response.status_code == 500
        error = error_of(response)
        assert (error.code, error.param) == ("non_finite_logits", "items[1].continuations[1]")
        assert (await fine).status_code == 200

    with_app(use)


def test_a_batch_that_fails_says_nothing_of_the_inside() -> None:
    async def use(app: Running) -> None:
        response = await app.score(items=[{"context": "a", "continuation": chr(BOOM)}])
        assert response.status_code == 500
        assert error_of(response).code == "scoring_failed"
        assert "secret" not in response.text
        assert (await app.score(items=[{"context": "a", "continuation": "b"}])).status_code == 200

    with_app(use)


@pytest.mark.parametrize("asked", [False, True])
def test_a_fault_of_ours_is_a_500_with_its_traceback_in_the_log_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    async def use(app: Running) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError(f"secret {'internals'}")

        monkeypatch.setattr(app.engine.loaded.encoder, "encode_texts", broken)
        response = await app.client.post(
            "/score",
            json={"items": [{"context": "a", "continuation": "b"}]},
            headers={"X-Request-Id": "find-me"},
        )
        assert response.status_code == 500
        assert error_of(response).type == "server_error"
        assert "secret" not in response.text
        assert response.headers["x-request-id"] == "find-me"

    with_app(use, log_request_text=asked)
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert "find-me" in record.getMessage()
    assert "in broken" in record.getMessage()
    assert "ZeroDivisionError" in caplog.text
    # What an error says may quote a request.
    assert ("secret internals" in caplog.text) == asked


def test_the_threads_death_answers_who_waits() -> None:
    async def use(app: Running) -> None:
        held = await app.hold()
        dying = asyncio.create_task(
            app.score(items=[{"context": "a", "continuation": "b" + chr(DIE)}])
        )
        await app.waiting(2)
        app.scorer.gate.set()
        await held
        response = await dying
        assert (response.status_code, error_of(response).code) == (503, "engine_stopped")
        assert (await app.client.get("/health")).json() == {"status": "failed"}

    with_app(use)


def test_the_schema_is_complete() -> None:
    async def use(app: Running) -> None:
        schema = (await app.client.get("/openapi.json")).json()
        text = json.dumps(schema)
        known = schema["components"]["schemas"]
        for name in re.findall(r'"#/components/schemas/(\w+)"', text):
            assert name in known
        assert {"ScoreRequest", "ScoreItem", "ScoreResponse", "ErrorResponse"} <= set(known)
        assert "HTTPValidationError" not in known  # FastAPI's own shape, which is never sent
        score = schema["paths"]["/score"]["post"]
        body = score["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/ScoreRequest"}
        example = known["ScoreRequest"]["examples"][0]
        assert (await app.score(**example)).status_code in (200, 400)  # 400: ids of a larger model
        assert {"200", "400", "404", "408", "413", "415", "429", "500", "503", "504"} == set(
            score["responses"]
        )
        answered = score["responses"]["200"]["content"]["application/json"]
        assert answered["schema"] == {"$ref": "#/components/schemas/ScoreResponse"}
        wire.ScoreResponse.model_validate(answered["example"])
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                for status, answer in operation["responses"].items():
                    (content,) = answer["content"].values()
                    assert "schema" in content, (path, status)
                    assert "example" in content, (path, status)
        assert (await app.client.get("/docs")).status_code == 200
        assert (await app.client.get("/openapi.json")).json() == schema

    with_app(use)
