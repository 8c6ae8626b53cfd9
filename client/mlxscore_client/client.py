"""`Client`: sends what `calls` makes, waits, and tries again. Never touches an event loop."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import httpx

from mlxscore_client import calls
from mlxscore_client.calls import Call, Job
from mlxscore_client.errors import MlxscoreError
from mlxscore_client.http_errors import httpx_errors_as_ours
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.stream_methods import StreamMethods
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


class Client(StreamMethods):
    """Scores texts on an mlxscore server. Safe to share between threads; close it, or use `with`.

        with Client() as client:
            paris, london = client.score("The capital of France is", [" Paris", " London"])
            paris.loglikelihood  # nats

    Raises the errors of `mlxscore_client.errors`.
    """

    def _open(self, transport: httpx.BaseTransport | None) -> None:
        self._http = httpx.Client(
            base_url=self.base_url,
            headers=self._headers,
            timeout=self._timeout,
            trust_env=self._trust_env,
            transport=transport,
        )

    def score(
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
        """How likely each continuation is after the context, in nats; in the order given.

        What the options mean: `wire.ScoreRequest`.
        """
        options = {
            "return_tokens": return_tokens,
            "top_logprobs": top_logprobs,
            "add_special_tokens": add_special_tokens,
            "boundary": boundary,
            "truncation": truncation,
            "model": model,
            "cache_salt": cache_salt,
        }
        return self._run(calls.score(context, continuations, options, self._limits))

    def score_items(
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
        """Many items, each with its own context. As one answer, however many requests it took."""
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
        return self._run(calls.score_items(items, options, self._limits))

    def loglikelihood(
        self,
        pairs: Iterable[tuple[TextOrIds, TextOrIds]],
        *,
        add_special_tokens: bool | None = None,
        boundary: Boundary = "joint",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> list[tuple[float, bool]]:
        """(loglikelihood in nats, is_greedy) of each (context, continuation), as lm-eval has it."""
        options = {
            "add_special_tokens": add_special_tokens,
            "boundary": boundary,
            "truncation": truncation,
            "model": model,
        }
        return self._run(calls.loglikelihood(pairs, options, self._limits))

    def loglikelihood_rolling(
        self,
        texts: Iterable[TextOrIds],
        *,
        window: int | None = None,
        stride: int | None = None,
        prefix_in: PrefixIn = "first",
        model: str | None = None,
    ) -> list[float]:
        """The loglikelihood of each whole text, of any length, in nats, as lm-eval has it.

        What the options mean: `wire.ScoreRequest`.
        """
        options = {
            "window": window,
            "stride": stride,
            "prefix_in": prefix_in,
            "model": model,
        }
        return self._run(calls.loglikelihood_rolling(texts, options, self._limits))

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """A text's ids; with the special tokens that the tokenizer puts before a text by default."""
        return self._send(calls.tokenize(text, add_special_tokens)).tokens

    def models(self) -> ModelList:
        """The model that is served, and its limits."""
        return self._send(calls.MODELS)

    def health(self) -> Health:
        """The server's state, also while it cannot score; an error only if it does not answer."""
        return self._send(calls.HEALTH)

    def _run(self, job: Job[T]) -> T:
        return job.join([self._send(call) for call in job.calls])

    def _send(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            try:
                with httpx_errors_as_ours(self.base_url):
                    response = self._http.request(**self._arguments(call))
                return self._read(call, response)
            except MlxscoreError as error:
                delay = self._delay(call, error, attempt)
                if delay is None:
                    raise
            self._sleep(delay)
            attempt += 1

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Close the connections; the client cannot be used again."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
