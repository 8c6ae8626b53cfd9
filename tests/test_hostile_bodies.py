"""A thousand hostile bodies against a real server process: each is refused, and it scores on."""

import asyncio
from collections import Counter

import httpx
from fakes import error_of
from hostile import GOOD, Hostile, corpus
from steady_model import logprobs
from steady_process import Steady


async def answer(client: httpx.AsyncClient, sent: Hostile) -> httpx.Response:
    headers = {"content-type": sent.content_type, "content-encoding": sent.encoding}
    return await client.request(sent.method, sent.path, content=sent.body, headers=headers)


async def attack(server: Steady) -> None:
    bodies = list(corpus())
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        for sent in bodies:
            response = await answer(client, sent)
            statuses[response.status_code] += 1
            said = f"{sent.method} {sent.path} {sent.content_type} {sent.body[:200]!r}"
            assert 400 <= response.status_code < 500, said
            if sent.method != "HEAD":
                assert error_of(response).message, said
        assert len(bodies) >= 1000
        assert set(statuses) == {400, 404, 405, 415}
        for path, good in GOOD.items():
            assert (await client.post(path, json=good)).status_code == 200, path
        item = {"context": "ab", "continuation": "cd"}
        scored = (await client.post("/score", json={"items": [item]})).json()["results"][0]
        assert scored["scores"][0]["loglikelihood"] == sum(logprobs([*b"abcd"], 2))


def test_a_thousand_hostile_bodies() -> None:
    with Steady() as server:
        asyncio.run(attack(server))
        assert server.process.poll() is None
    assert server.troubles() == []
    assert server.process.returncode == 0
