"""Which token a number belongs to: every endpoint over a real model that is certain of "one more".

A score taken a place too early or too late, of the context, of another row or twice is seen at once:
right ones are 0, all others about -34 nats.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_folders import save_successor

from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.model import load
from mlxscore_server.settings import Settings

CONTEXT = [40, 41, 50, 51, 90]
"""Also its own tokens are some right, some wrong."""
RIGHT, LATE, EARLY, AGAIN = [91, 92, 93], [92, 93, 94], [90, 91, 92], [91, 92, 92]
SURE, WRONG = pytest.approx(0.0, abs=1e-4), pytest.approx(-34.0, abs=1.0)


def expected(before: int, ids: Sequence[int]) -> list[Any]:
    """Each token's logprob."""
    return [SURE if b == a + 1 else WRONG for a, b in zip([before, *ids], ids, strict=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_successor(tmp_path_factory.mktemp("successor"))


Post = Callable[..., Awaitable[Any]]


def ask(folder: Path, use: Callable[[Post], Awaitable[None]]) -> None:
    async def main() -> None:
        settings = Settings(model=str(folder))
        engine = Engine(settings, lambda: load(settings))
        engine.start()
        try:
            await engine.ready()
            transport = httpx.ASGITransport(create_app(engine, settings))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:

                async def post(path: str, **body: Any) -> Any:
                    response = await client.post(path, json=body)
                    assert response.status_code == 200, response.text
                    return response.json()

                await use(post)
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("context", [CONTEXT, CONTEXT[-1:]])
def test_continuations_alone_and_together(folder: Path, context: list[int]) -> None:
    async def use(post: Post) -> None:
        given = [RIGHT, LATE, EARLY, AGAIN, RIGHT[:1], LATE[:1]]
        together = {"context": context, "continuations": given}
        apart = [{"context": context, "continuation": ids} for ids in given]
        both = await post("/score", items=[together, *apart], top_logprobs=1)
        first, *others = both["results"]
        for ids, one, (other,) in zip(
            given, first["scores"], (result["scores"] for result in others), strict=True
        ):
            right = expected(context[-1], ids)
            for score in (one, other):
                found = [token["logprob"] for token in score["tokens"]]
                assert found == right
                assert score["loglikelihood"] == pytest.approx(sum(found), abs=1e-6)
                assert score["is_greedy"] == (right == [SURE] * len(ids))
                best = [token["top"][0]["id"] for token in score["tokens"]]
                assert best == [i + 1 for i in [context[-1], *ids[:-1]]]

    ask(folder, use)


def test_prompts_and_what_comes_after_them(folder: Path) -> None:
    async def use(post: Post) -> None:
        prompts = [CONTEXT + RIGHT, CONTEXT, [7], CONTEXT + LATE]
        wanted = {"echo": True, "max_tokens": 1, "logprobs": 1, "return_tokens_as_token_ids": True}
        echoes = await post(
            "/v1/completions", prompt=prompts, **wanted, prompt_logprobs=1, return_token_ids=True
        )
        for prompt, choice in zip(prompts, echoes["choices"], strict=True):
            found, new = choice["logprobs"], prompt[-1] + 1
            ids = [*prompt[1:], new]
            assert choice["token_ids"] == [new]
            assert choice["prompt_token_ids"] == prompt
            assert found["tokens"] == [f"token_id:{i}" for i in [*prompt, new]]
            assert found["token_logprobs"] == [None, *expected(prompt[0], ids)]
            best = [max(top, key=lambda name: top[name]) for top in found["top_logprobs"][1:]]
            assert best == [f"token_id:{i + 1}" for i in prompt]
            ranked = choice["prompt_logprobs"]
            assert ranked[0] is None
            for before, token, entries in zip(prompt[:-1], prompt[1:], ranked[1:], strict=True):
                assert entries[str(before + 1)]["rank"] == 1
                assert (entries[str(token)]["rank"] == 1) == (token == before + 1)
        answers = await post(
            "/generate",
            input_ids=prompts,
            sampling_params={"max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=0,
        )
        for prompt, answer in zip(prompts, answers, strict=True):
            meta, new = answer["meta_info"], prompt[-1] + 1
            found = [logprob for logprob, _, _ in meta["input_token_logprobs"]]
            assert found == [None, *expected(prompt[0], prompt[1:])]
            assert meta["output_token_logprobs"] == [[SURE, new, None]]

    ask(folder, use)


def test_labels_and_completions_of_a_prompt(folder: Path) -> None:
    async def use(post: Post) -> None:
        labels = await post(
            "/v1/score", query=CONTEXT[:2], items=[[50], [90]], label_token_ids=[51, 91]
        )
        assert labels["scores"] == [
            pytest.approx([1, 0], abs=1e-4),
            pytest.approx([0, 1], abs=1e-4),
        ]
        sequences = await post(
            "/get_sequence_logprobs/",
            sequences=[CONTEXT + LATE, CONTEXT],
            prompt_lengths=[len(CONTEXT), 1],
            top_logprobs=1,
        )
        ranked = [[40, 41, 50, 51, 90], [90, *LATE]]
        for (before, *ids), best in zip(ranked[::-1], sequences["logprob_token_ids"], strict=True):
            firsts = [i + 1 for i in [before, *ids[:-1]]]
            assert best == [[a] if a == b else [a, b] for a, b in zip(firsts, ids, strict=True)]

    ask(folder, use)


def test_whole_texts_and_their_windows(folder: Path) -> None:
    async def use(post: Post) -> None:
        ids = [*CONTEXT, *RIGHT, *LATE]
        for window, stride in ((None, None), (4, None), (4, 2), (2, 1)):
            options = {"window": window, "stride": stride, "return_tokens": True}
            answer = await post("/score", items=[{"ids": ids}], **options)
            (score,) = answer["results"][0]["scores"]
            assert [token["id"] for token in score["tokens"]] == ids
            # Before the first stands the BOS, whose id is 0.
            assert [token["logprob"] for token in score["tokens"]] == expected(0, ids)

    ask(folder, use)
