"""`cache_salt`: what one caller's requests leave behind serves nobody who does not know the salt."""

from typing import Any

import httpx
import numpy as np
import pytest
from fakes import Running, error_of, with_app
from running import bare, with_engine
from tiny_models import VOCAB, build

from mlxscore_client import AsyncClient
from mlxscore_server.device import current
from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row
from mlxscore_server.scoring import BatchScorer

BODIES: dict[str, dict[str, Any]] = {
    "/score": {"items": [{"context": "ab", "continuations": ["c", "d"]}, {"text": "abc"}]},
    "/v1/completions": {"prompt": ["abc", "abd"], "echo": True, "max_tokens": 0, "logprobs": 1},
    "/generate": {"text": "abc", "sampling_params": {"max_new_tokens": 1}, "return_logprob": True},
    "/v1/score": {"query": "a", "items": ["b", "c"], "labels": ["d", "e"]},
    "/generative_scoring": {"query": "a", "items": ["b", "c"], "labels": ["d", "e"]},
    "/rerank": {"query": "a", "documents": ["b", "c"]},
    "/get_sequence_logprobs/": {
        "sequences": [[97, 98, 99]],
        "prompt_lengths": [1],
        "top_logprobs": 1,
    },
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("salt", [None, "tenant é"])
def test_every_row_of_a_request_has_its_salt(path: str, salt: str | None) -> None:
    async def use(app: Running) -> None:
        body = BODIES[path] | ({} if salt is None else {"cache_salt": salt})
        response = await app.client.post(path, json=body)
        assert response.status_code == 200, response.text
        found = {row.salt for batch in app.scorer.batches for row in batch.rows}
        assert found == {(salt or "").encode()}

    with_app(use)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("salt", ["", 3, ["a"], "x" * 1025])
def test_a_salt_is_a_text_that_is_not_empty(path: str, salt: object) -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(path, json=BODIES[path] | {"cache_salt": salt})
        assert response.status_code == 400
        assert error_of(response).param == "cache_salt"

    with_app(use)


def test_the_client_sends_it() -> None:
    async def use(app: Running) -> None:
        transport = httpx.ASGITransport(app.app)
        async with AsyncClient("http://localhost", transport=transport) as client:
            await client.score("ab", ["c"], cache_salt="one")
            await client.score_items([{"context": "ab", "continuation": "d"}], cache_salt="two")
        assert [b.rows[0].salt for b in app.scorer.batches] == [b"one", b"two"]

    with_app(use)


def test_prefixes_are_kept_for_the_same_salt_only() -> None:
    def load() -> Loaded:
        scorer = BatchScorer(build("llama"), current(), layout="packed", kept_bytes=2**24)
        return bare(scorer)

    ids = np.random.default_rng(0).integers(0, VOCAB, 60).astype(np.int32)

    async def use(engine: Engine) -> None:
        async def cached(salt: bytes) -> tuple[int, list[float]]:
            scored = await engine.score([Row(ids, 50, salt=salt)])
            return scored.cached_tokens, scored.scores[0].logprobs.tolist()

        nothing, first = await cached(b"one")
        other, _ = await cached(b"two")
        without, _ = await cached(b"")
        assert nothing == other == without == 0
        again, second = await cached(b"one")
        assert again >= 50
        assert second == pytest.approx(first, abs=1e-4)
        # Side by side in one window they do not meet either.
        rows = [Row(ids[::-1].copy(), 50, salt=salt) for salt in (b"one", b"two", b"one")]
        together = await engine.score(rows)
        assert together.computed_tokens == 2 * 59

    with_engine(load, use)
