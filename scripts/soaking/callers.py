"""Callers: those who wait for their answers, leave, send rubbish, or make the model raise."""

import asyncio
import random
import time
from collections.abc import Sequence

import httpx
from hostile import Hostile, corpus
from steady_model import RAISE

from mlxscore_client import AsyncClient, MlxscoreError
from mlxscore_client.errors import (
    APIConnectionError,
    APIStatusError,
    RateLimitError,
    ServerUnavailableError,
)
from soaking.asks import Ask, Numbers, make
from soaking.tally import Tally

_CLIENTS = 12
"""One's pool of connections takes time with the square of their number."""
RETRIES = 30
"""Of one call: a restart of the server must not outlast them."""
_LONGEST_STAY = 1.0  # seconds, of one who leaves


class Counted(httpx.AsyncHTTPTransport):
    """Counts every request and what comes back."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None, max_keepalive_connections=200))
        self._tally = tally

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._tally.sent += 1
        self._tally.bytes_sent += len(await request.aread())
        try:
            response = await super().handle_async_request(request)
        except httpx.TransportError as error:
            self._tally.statuses[type(error).__name__] += 1
            raise
        self._tally.statuses[str(response.status_code)] += 1
        return response


class Callers:
    """All callers over a few clients."""

    def __init__(self, url: str, tally: Tally, *, raisers: bool, seed: int) -> None:
        self.tally, self._seed, self._raisers = tally, seed, raisers
        self._clients = [
            AsyncClient(url, transport=Counted(tally), max_retries=RETRIES, timeout=120)
            for _ in range(_CLIENTS)
        ]
        self._hostile: Sequence[Hostile] = [h for h in corpus() if h.method != "HEAD"]
        self._number = 0
        self.stored: dict[int, Numbers] | None = None
        """Answers by number, where no formula gives them: then only these are asked."""

    async def store(self, count: int) -> None:
        """Ask so many once, one after the other, and take the answers for the truth."""
        stored: dict[int, Numbers] = {}
        for number in range(count):
            stored[number] = await make(number, self._seed).send(self.client)
        self.stored = stored

    @property
    def client(self) -> AsyncClient:
        """Whose turn it is."""
        return self._clients[self._number % len(self._clients)]

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def another(self) -> None:
        """One more who only waits for the answer."""
        self._number += 1
        self.tally.calls += 1
        await self.ask()

    def one(self) -> "asyncio.Task[None]":
        """The next caller of any kind sets out."""
        self._number += 1
        self.tally.calls += 1
        fate = random.Random(f"fate {self._seed} {self._number}")
        draw = fate.random()
        if draw < 0.05:
            work = self._leave(fate)
        elif draw < 0.10:
            work = self._send_rubbish(fate)
        elif draw < 0.11 and self._raisers:
            work = self._raise()
        else:
            work = self.ask()
        return asyncio.create_task(work)

    def _next(self) -> tuple[Ask, str, Numbers]:
        number = self._number if self.stored is None else self._number % len(self.stored)
        ask = make(number, self._seed)
        truth = ask.known() if self.stored is None else self.stored[number]
        name = f"{ask.kind} number {number}"
        self.tally.expect(ask, name, truth)
        return ask, name, truth

    async def ask(self) -> None:
        """Wait for an answer, and compare it."""
        ask, name, truth = self._next()
        begun = time.monotonic()
        try:
            got = await ask.send(self.client)
        except (RateLimitError, ServerUnavailableError) as error:
            self.tally.gave_up += 1
            self.tally.example(f"{name} gave up: {error}")
        except MlxscoreError as error:
            self.tally.lose(name, error)
        else:
            self.tally.answer(ask, name, truth, got, time.monotonic() - begun)

    async def _leave(self, fate: random.Random) -> None:
        asking = asyncio.create_task(self._next()[0].send(self.client))
        await asyncio.wait([asking], timeout=fate.random() * _LONGEST_STAY)
        self.tally.left += not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def _send_rubbish(self, fate: random.Random) -> None:
        sent = fate.choice(self._hostile)
        name = f"{sent.method} {sent.path} {sent.body[:60]!r}"
        headers = {"content-type": sent.content_type, "content-encoding": sent.encoding}
        for attempt in range(RETRIES):
            try:
                response = await self.client._http.request(
                    sent.method, sent.path, content=sent.body, headers=headers
                )
            except httpx.TransportError as error:
                last: object = error
            else:
                last = f"{response.status_code} {response.text[:100]}"
                if response.status_code not in (429, 503):
                    if 400 <= response.status_code < 500 and "error" in response.json():
                        self.tally.bad_bodies += 1
                        return
                    break
            await asyncio.sleep(min(4, 0.25 * 2**attempt))
        self.tally.lose(name, last)

    async def _raise(self) -> None:
        """A good row and one that the model raises on: that one is named, and the request fails."""
        items = [
            {"context": f"{self._number} good", "continuation": " b"},
            {"context": f"{self._number} bad", "continuation": RAISE.decode()},
        ]
        name = f"raiser number {self._number}"
        try:
            await self.client.score_items(items)
        except APIStatusError as error:
            if error.code == "scoring_failed" and error.param == "items[1].continuation":
                self.tally.raised += 1
            elif isinstance(error, RateLimitError | ServerUnavailableError):
                self.tally.gave_up += 1
            else:
                self.tally.lose(name, f"{error.status} {error.code} {error.param} {error}")
        except APIConnectionError as error:
            self.tally.lose(name, error)
        else:
            self.tally.wrong += 1
            self.tally.example(f"{name} was answered")
