"""`AsyncClient.score_stream`: as `stream_methods`, a few requests at a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

import httpx

from mlxscore_client.async_helper_methods import AsyncHelperMethods
from mlxscore_client.errors import MlxscoreError
from mlxscore_client.http_errors import httpx_errors_as_ours, status_error
from mlxscore_client.inputs import check_several
from mlxscore_client.stream import MAX_REQUESTS, Batch, Batches, Order
from mlxscore_client.wire import Boundary, PrefixIn, ScoreItem, StreamResult, Truncation

Items = Iterable[ScoreItem | Mapping[str, Any]] | AsyncIterable[ScoreItem | Mapping[str, Any]]


class AsyncStreamMethods(AsyncHelperMethods):
    """What streams, over a client's own connections."""

    _http: httpx.AsyncClient

    def score_stream(
        self,
        items: Items,
        *,
        ordered: bool = False,
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
    ) -> AsyncGenerator[StreamResult]:
        """See `Client.score_stream`; the items may come from an asynchronous iterator too.

        To leave before its end: `async with contextlib.aclosing(client.score_stream(items)) as results`.
        """
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
        check_several(items)
        batches = Batches(options, self._limits.max_bytes, self._limits.max_rows)
        return self._stream(_iterator(items), batches, Order(ordered))

    async def _stream(
        self,
        items: AsyncIterator[ScoreItem | Mapping[str, Any]],
        batches: Batches,
        order: Order,
    ) -> AsyncGenerator[StreamResult]:
        # Holds no more than what is ahead: who puts something in never waits, the server neither.
        answers = asyncio.Queue[StreamResult | BaseException | None]()
        tasks = set[asyncio.Task[None]]()
        running, more = 0, True
        try:
            while True:
                while more and running < MAX_REQUESTS and batches.wanted(order.given):
                    more = await _collect(items, batches)
                    batch, refused = batches.batch()
                    if batch.unanswered:
                        running += 1
                        task = asyncio.create_task(self._exchange(batch, batches.params, answers))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    for result in refused:
                        for ready in order.add(result):
                            yield ready
                if not running:
                    break
                answer = await answers.get()
                if answer is None:
                    running -= 1
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    for ready in order.add(answer):
                        yield ready
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _exchange(
        self,
        batch: Batch,
        params: Mapping[str, str],
        answers: "asyncio.Queue[StreamResult | BaseException | None]",
    ) -> None:
        """Send a batch until all of it is answered; None after its last result."""
        attempt = 0
        try:
            while batch.unanswered:
                before = len(batch.unanswered)
                try:
                    await self._send_batch(batch, params, answers)
                    break
                except MlxscoreError as error:
                    # Where some are answered, it is not the same again.
                    attempt = 0 if len(batch.unanswered) < before else attempt
                    delay = self._retry.delay(error, attempt)
                    if delay is None:
                        raise
                await self._sleep(delay)
                attempt += 1
            answers.put_nowait(None)
        except Exception as error:
            answers.put_nowait(error)

    async def _send_batch(
        self,
        batch: Batch,
        params: Mapping[str, str],
        answers: "asyncio.Queue[StreamResult | BaseException | None]",
    ) -> None:
        sending = batch.send()
        with httpx_errors_as_ours(self.base_url):
            async with self._http.stream(
                **self._stream_arguments(sending.content, params)
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise status_error(response)
                async for data in response.aiter_bytes():
                    for result in sending.read(data):
                        answers.put_nowait(result)
        sending.end()

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError


async def _iterator(items: Items) -> AsyncIterator[ScoreItem | Mapping[str, Any]]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def _collect(items: AsyncIterator[ScoreItem | Mapping[str, Any]], batches: Batches) -> bool:
    """Take items for a batch; whether there may be more of them."""
    async for item in items:
        if batches.add(item):
            return True
    return False
