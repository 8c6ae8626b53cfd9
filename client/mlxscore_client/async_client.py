"""`AsyncClient`: as `client`, for asyncio."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import httpx

from mlxscore_client import calls
from mlxscore_client.async_stream_methods import AsyncStreamMethods
from mlxscore_client.calls import Call, Job
from mlxscore_client.errors import MlxscoreError
from mlxscore_client.http_errors import httpx_errors_as_ours
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.wire import (
    Boundary,
    Health,
    ModelList,
    PrefixIn,
    Score,
    ScoreItem,
    ScoreResponse,
    Truncation,
)

T = TypeVar("T")


class AsyncClient(AsyncStreamMethods):
    """`Client` for asyncio; belongs to one event loop. Close it, or use `async with`.

    The requests of a large call are sent side by side; if one fails, the others are cancelled.
    """

    max_concurrency = 4
    """Requests of one call that are under way at a time."""

    def _open(self, transport: httpx.AsyncBaseTransport | None) -> None:
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=self._headers,
            timeout=self._timeout,
            trust_env=self._trust_env,
            transport=transport,
        )

    async def score(
        self,
        context: TextOrIds,
        continuations: Iterable[TextOrIds],
        *,
        return_tokens: bool = False,
        top_logprobs: int = 0,
        add_special_tokens: bool | None = None,
        boundary: Boundary = "joint",
        truncation: Truncation = "error",
        model: str | None = None,
        cache_salt: str | None = None,
    ) -> list[Score]:
        """See `Client.score`."""
        options = {
            "return_tokens": return_tokens,
            "top_logprobs": top_logprobs,
            "add_special_tokens": add_special_tokens,
            "boundary": boundary,
            "truncation": truncation,
            "model": model,
            "cache_salt": cache_salt,
        }
        return await self._run(calls.score(context, continuations, options, self._limits))

    async def score_items(
        self,
        items: Iterable[ScoreItem | Mapping[str, Any]],
        *,
        return_tokens: bool = False,
        top_logprobs: int = 0,
        space_logprobs: bool = False,
        add_special_tokens: bool | None = None,
        boundary: Boundary = "joint",
        truncation: Truncation = "error",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
        window: int | None = None,
        stride: int | None = None,
        prefix_in: PrefixIn = "first",
        model: str | None = None,
        cache_salt: str | None = None,
    ) -> ScoreResponse:
        """See `Client.score_items`."""
        options = {
            "return_tokens": return_tokens,
            "top_logprobs": top_logprobs,
            "space_logprobs": space_logprobs,
            "add_special_tokens": add_special_tokens,
            "boundary": boundary,
            "truncation": truncation,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": chat_template_kwargs,
            "window": window,
            "stride": stride,
            "prefix_in": prefix_in,
            "model": model,
            "cache_salt": cache_salt,
        }
        return await self._run(calls.score_items(items, options, self._limits))

    async def loglikelihood(
        self,
        pairs: Iterable[tuple[TextOrIds, TextOrIds]],
        *,
        add_special_tokens: bool | None = None,
        boundary: Boundary = "joint",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> list[tuple[float, bool]]:
        """See `Client.loglikelihood`."""
        options = {
            "add_special_tokens": add_special_tokens,
            "boundary": boundary,
            "truncation": truncation,
            "model": model,
        }
        return await self._run(calls.loglikelihood(pairs, options, self._limits))

    async def loglikelihood_rolling(
        self,
        texts: Iterable[TextOrIds],
        *,
        window: int | None = None,
        stride: int | None = None,
        prefix_in: PrefixIn = "first",
        model: str | None = None,
    ) -> list[float]:
        """See `Client.loglikelihood_rolling`."""
        options = {
            "window": window,
            "stride": stride,
            "prefix_in": prefix_in,
            "model": model,
        }
        return await self._run(calls.loglikelihood_rolling(texts, options, self._limits))

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """See `Client.tokenize`."""
        return (await self._send(calls.tokenize(text, add_special_tokens))).tokens

    async def models(self) -> ModelList:
        """See `Client.models`."""
        return await self._send(calls.MODELS)

    async def health(self) -> Health:
        """See `Client.health`."""
        return await self._send(calls.HEALTH)

    async def _run(self, job: Job[T]) -> T:
        answers: dict[int, Any] = {}
        todo = enumerate(job.calls)  # shared: each worker takes the next when it is free

        async def work() -> None:
            for place, call in todo:
                answers[place] = await self._send(call)

        failed: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.max_concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            failed = errors.exceptions[0]
        if failed is not None:
            raise failed
        return job.join([answers[place] for place in range(len(answers))])

    async def _send(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            try:
                with httpx_errors_as_ours(self.base_url):
                    response = await self._http.request(**self._arguments(call))
                return self._read(call, response)
            except MlxscoreError as error:
                delay = self._delay(call, error, attempt)
                if delay is None:
                    raise
            await self._sleep(delay)
            attempt += 1

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """Close the connections; the client cannot be used again."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
