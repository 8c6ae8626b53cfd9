"""`Client.score_stream`: a few requests at a time, each in a thread of its own."""

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any

import httpx

from mlxscore_client.errors import MlxscoreError
from mlxscore_client.helper_methods import HelperMethods
from mlxscore_client.http_errors import httpx_errors_as_ours, status_error
from mlxscore_client.inputs import check_several
from mlxscore_client.stream import MAX_REQUESTS, Batch, Batches, Order
from mlxscore_client.wire import Boundary, PrefixIn, ScoreItem, StreamResult, Truncation


class StreamMethods(HelperMethods):
    """What streams, over a client's own connections."""

    _http: httpx.Client

    def score_stream(
        self,
        items: Iterable[ScoreItem | Mapping[str, Any]],
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
    ) -> Generator[StreamResult]:
        """Any number of items, each result as soon as it is there, or in the items' order (`ordered`).

        Items are taken as results are: about a thousand ahead, so that an iterator may be endless. What is
        wrong with one item stands in its result's `error`; what cannot be sent after all retries is raised.
        A retry sends again what is not answered. Close the iterator to leave before its end.
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
        return self._stream(iter(items), batches, Order(ordered))

    def _stream(
        self, items: Iterator[ScoreItem | Mapping[str, Any]], batches: Batches, order: Order
    ) -> Generator[StreamResult]:
        # Holds no more than what is ahead: who puts something in never waits, the server neither.
        answers = SimpleQueue[StreamResult | BaseException | None]()
        left = threading.Event()
        running, more = 0, True
        try:
            while True:
                while more and running < MAX_REQUESTS and batches.wanted(order.given):
                    more = _collect(items, batches)
                    batch, refused = batches.batch()
                    if batch.unanswered:
                        running += 1
                        work = (batch, batches.params, answers, left)
                        # Not waited for where the caller leaves: it may be minutes until a line comes.
                        threading.Thread(target=self._exchange, args=work, daemon=True).start()
                    for result in refused:
                        yield from order.add(result)
                if not running:
                    break
                answer = answers.get()
                if answer is None:
                    running -= 1
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    yield from order.add(answer)
        finally:
            left.set()

    def _exchange(
        self,
        batch: Batch,
        params: Mapping[str, str],
        answers: "SimpleQueue[StreamResult | BaseException | None]",
        left: threading.Event,
    ) -> None:
        """Send a batch until all of it is answered; None after its last result."""
        attempt = 0
        try:
            while batch.unanswered:
                before = len(batch.unanswered)
                try:
                    self._send_batch(batch, params, answers, left)
                    break
                except MlxscoreError as error:
                    # Where some are answered, it is not the same again.
                    attempt = 0 if len(batch.unanswered) < before else attempt
                    delay = self._retry.delay(error, attempt)
                    if delay is None:
                        raise
                self._sleep(delay)
                attempt += 1
            answers.put(None)
        except BaseException as error:
            answers.put(error)

    def _send_batch(
        self,
        batch: Batch,
        params: Mapping[str, str],
        answers: "SimpleQueue[StreamResult | BaseException | None]",
        left: threading.Event,
    ) -> None:
        sending = batch.send()
        with (
            httpx_errors_as_ours(self.base_url),
            self._http.stream(**self._stream_arguments(sending.content, params)) as response,
        ):
            if not response.is_success:
                response.read()
                raise status_error(response)
            for data in response.iter_bytes():
                for result in sending.read(data):
                    answers.put(result)
                if left.is_set():
                    return
        sending.end()

    def _sleep(self, seconds: float) -> None:
        raise NotImplementedError


def _collect(items: Iterator[ScoreItem | Mapping[str, Any]], batches: Batches) -> bool:
    """Take items for a batch; whether there may be more of them."""
    return any(batches.add(item) for item in items)
