"""The helpers as methods of `AsyncClient`."""

from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

import httpx

from mlxscore_client.base import Base
from mlxscore_client.calls import Job
from mlxscore_client.helpers import (
    PMI,
    Calibration,
    Classification,
    Conversation,
    DPOLogps,
    Labels,
    Normalize,
    Perplexity,
    Prompt,
    Ranked,
    Steps,
    Surprisal,
    TruncationMode,
    Unit,
    classification,
    dpo,
    perplexities,
    pointwise,
    preferences,
    ranking,
    surprisals,
)
from mlxscore_client.helpers.classification import CONTENT_FREE
from mlxscore_client.inputs import TextOrIds
from mlxscore_client.wire import PrefixIn, Truncation

T = TypeVar("T")


class AsyncHelperMethods(Base[httpx.AsyncBaseTransport]):
    """`HelperMethods` for asyncio."""

    async def rank(
        self,
        context: TextOrIds | Conversation,
        continuations: Iterable[TextOrIds],
        *,
        normalize: Normalize = "none",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> list[Ranked]:
        """See `Client.rank`."""
        steps = ranking.rank(
            context,
            continuations,
            normalize=normalize,
            truncation=truncation,
            model=model,
            limits=self._limits,
        )
        return await self._follow(steps)

    @overload
    async def classify(
        self,
        texts: str,
        labels: Labels,
        template: str,
        *,
        calibration: Calibration = "none",
        content_free: Sequence[str] = CONTENT_FREE,
        domain: str | None = None,
        normalize: Normalize = "none",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> Classification: ...

    @overload
    async def classify(
        self,
        texts: Iterable[str],
        labels: Labels,
        template: str,
        *,
        calibration: Calibration = "none",
        content_free: Sequence[str] = CONTENT_FREE,
        domain: str | None = None,
        normalize: Normalize = "none",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> list[Classification]: ...

    async def classify(
        self,
        texts: str | Iterable[str],
        labels: Labels,
        template: str,
        *,
        calibration: Calibration = "none",
        content_free: Sequence[str] = CONTENT_FREE,
        domain: str | None = None,
        normalize: Normalize = "none",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> Classification | list[Classification]:
        """See `Client.classify`."""
        steps = classification.classify(
            texts,
            labels,
            template,
            calibration=calibration,
            content_free=content_free,
            domain=domain,
            normalize=normalize,
            truncation=truncation,
            model=model,
            limits=self._limits,
        )
        found = await self._follow(steps)
        return found[0] if isinstance(texts, str) else found

    async def perplexity(
        self,
        texts: Iterable[TextOrIds],
        *,
        window: int | None = None,
        stride: int | None = None,
        prefix_in: PrefixIn = "first",
        model: str | None = None,
    ) -> Perplexity:
        """See `Client.perplexity`."""
        steps = perplexities.perplexity(
            texts,
            window=window,
            stride=stride,
            prefix_in=prefix_in,
            model=model,
            limits=self._limits,
        )
        return await self._follow(steps)

    @overload
    async def surprisal(
        self,
        texts: str,
        *,
        unit: Unit = "nats",
        bow_correction: bool = True,
        model: str | None = None,
    ) -> Surprisal: ...

    @overload
    async def surprisal(
        self,
        texts: Iterable[str],
        *,
        unit: Unit = "nats",
        bow_correction: bool = True,
        model: str | None = None,
    ) -> list[Surprisal]: ...

    async def surprisal(
        self,
        texts: str | Iterable[str],
        *,
        unit: Unit = "nats",
        bow_correction: bool = True,
        model: str | None = None,
    ) -> Surprisal | list[Surprisal]:
        """See `Client.surprisal`."""
        steps = surprisals.surprisal(
            texts, unit=unit, bow_correction=bow_correction, model=model, limits=self._limits
        )
        found = await self._follow(steps)
        return found[0] if isinstance(texts, str) else found

    async def pmi(
        self,
        context: TextOrIds | Conversation,
        continuation: TextOrIds,
        *,
        domain: TextOrIds = "",
        model: str | None = None,
    ) -> PMI:
        """See `Client.pmi`."""
        steps = pointwise.pmi(
            context, continuation, domain=domain, model=model, limits=self._limits
        )
        return await self._follow(steps)

    @overload
    async def dpo_logps(
        self,
        prompt: Prompt,
        chosen: Prompt,
        rejected: Prompt,
        *,
        max_length: int | None = None,
        truncation_mode: TruncationMode = "keep_start",
        model: str | None = None,
    ) -> DPOLogps: ...

    @overload
    async def dpo_logps(
        self,
        prompt: Iterable[Prompt],
        chosen: Iterable[Prompt],
        rejected: Iterable[Prompt],
        *,
        max_length: int | None = None,
        truncation_mode: TruncationMode = "keep_start",
        model: str | None = None,
    ) -> list[DPOLogps]: ...

    async def dpo_logps(
        self,
        prompt: Prompt | Iterable[Prompt],
        chosen: Prompt | Iterable[Prompt],
        rejected: Prompt | Iterable[Prompt],
        *,
        max_length: int | None = None,
        truncation_mode: TruncationMode = "keep_start",
        model: str | None = None,
    ) -> DPOLogps | list[DPOLogps]:
        """See `Client.dpo_logps`."""
        steps = dpo.dpo_logps(
            prompt,
            chosen,
            rejected,
            max_length=max_length,
            truncation_mode=truncation_mode,
            model=model,
            limits=self._limits,
        )
        found = await self._follow(steps)
        return found[0] if preferences.is_one(prompt) else found

    async def _follow(self, steps: Steps[T]) -> T:
        """Run a helper's jobs, each after the one before."""
        try:
            job = next(steps)
            while True:
                job = steps.send(await self._run(job))
        except StopIteration as done:
            return done.value

    async def _run(self, job: Job[T]) -> T:
        raise NotImplementedError
