"""The helpers as methods of `Client`."""

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


class HelperMethods(Base[httpx.BaseTransport]):
    """What `helpers` computes, over a client's own way to run jobs."""

    def rank(
        self,
        context: TextOrIds | Conversation,
        continuations: Iterable[TextOrIds],
        *,
        normalize: Normalize = "none",
        truncation: Truncation = "error",
        model: str | None = None,
    ) -> list[Ranked]:
        """The continuations of one context, the likeliest first, with probabilities among them.

        `normalize` is what a loglikelihood is divided by before they are compared: "none"
        (lm-evaluation-harness's `acc`), "token", "byte" (`acc_bytes`) or "char" (`acc_norm`).
        """
        steps = ranking.rank(
            context,
            continuations,
            normalize=normalize,
            truncation=truncation,
            model=model,
            limits=self._limits,
        )
        return self._follow(steps)

    @overload
    def classify(  # pyright: ignore[reportOverlappingOverload]
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
    def classify(
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

    def classify(
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
        """The likeliest label of a text (one result) or of each of many (a list).

        `template` holds `{text}` once; each label, of any number of tokens, is scored as what follows
        it, and mostly begins with a space. As a mapping, labels are names and what is scored for each.

        `calibration` takes out what makes a label likely whatever the text: "contextual" divides by its
        mean probability after the `content_free` inputs (Zhao et al. 2021), "pmi" by that after the
        `domain` premise (Holtzman et al. 2021; None: what stands behind `{text}` in the template).
        """
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
        found = self._follow(steps)
        return found[0] if isinstance(texts, str) else found

    def perplexity(
        self,
        texts: Iterable[TextOrIds],
        *,
        window: int | None = None,
        stride: int | None = None,
        prefix_in: PrefixIn = "first",
        model: str | None = None,
    ) -> Perplexity:
        """Token, word and byte perplexity and bits per byte of texts of any length.

        Over all of them, as lm-evaluation-harness weights them, and of each (`texts`). What the options
        mean: `wire.ScoreRequest`.
        """
        steps = perplexities.perplexity(
            texts,
            window=window,
            stride=stride,
            prefix_in=prefix_in,
            model=model,
            limits=self._limits,
        )
        return self._follow(steps)

    @overload
    def surprisal(  # pyright: ignore[reportOverlappingOverload]
        self,
        texts: str,
        *,
        unit: Unit = "nats",
        bow_correction: bool = True,
        model: str | None = None,
    ) -> Surprisal: ...

    @overload
    def surprisal(
        self,
        texts: Iterable[str],
        *,
        unit: Unit = "nats",
        bow_correction: bool = True,
        model: str | None = None,
    ) -> list[Surprisal]: ...

    def surprisal(
        self,
        texts: str | Iterable[str],
        *,
        unit: Unit = "nats",
        bow_correction: bool = True,
        model: str | None = None,
    ) -> Surprisal | list[Surprisal]:
        """-log p of each token and each word, of a text (one result) or of each of many (a list).

        Words stand between white space. With `bow_correction` their probabilities do not depend on
        the tokenizer's putting the space before a word (Pimentel & Meister 2024, Oh & Schuler 2024);
        without, a word is the sum of its tokens.
        """
        steps = surprisals.surprisal(
            texts, unit=unit, bow_correction=bow_correction, model=model, limits=self._limits
        )
        found = self._follow(steps)
        return found[0] if isinstance(texts, str) else found

    def pmi(
        self,
        context: TextOrIds | Conversation,
        continuation: TextOrIds,
        *,
        domain: TextOrIds = "",
        model: str | None = None,
    ) -> PMI:
        """log p(continuation | context) - log p(continuation | domain), in nats.

        `domain` is what stands before it in place of the context (Holtzman et al. 2021's domain
        premise); "": nothing, so that this is pointwise mutual information.
        """
        steps = pointwise.pmi(
            context, continuation, domain=domain, model=model, limits=self._limits
        )
        return self._follow(steps)

    @overload
    def dpo_logps(  # pyright: ignore[reportOverlappingOverload]
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
    def dpo_logps(
        self,
        prompt: Iterable[Prompt],
        chosen: Iterable[Prompt],
        rejected: Iterable[Prompt],
        *,
        max_length: int | None = None,
        truncation_mode: TruncationMode = "keep_start",
        model: str | None = None,
    ) -> list[DPOLogps]: ...

    def dpo_logps(
        self,
        prompt: Prompt | Iterable[Prompt],
        chosen: Prompt | Iterable[Prompt],
        rejected: Prompt | Iterable[Prompt],
        *,
        max_length: int | None = None,
        truncation_mode: TruncationMode = "keep_start",
        model: str | None = None,
    ) -> DPOLogps | list[DPOLogps]:
        """TRL's `ref_chosen_logps` and `ref_rejected_logps` of a pair (one result), or of columns (a list).

        Texts (which get the EOS), conversations (through the model's chat template) or token ids (as
        they are). `max_length` and `truncation_mode` are those of TRL's DPOConfig. A completion of
        which nothing is left has 0.0 and no tokens; TRL drops such pairs.
        """
        steps = dpo.dpo_logps(
            prompt,
            chosen,
            rejected,
            max_length=max_length,
            truncation_mode=truncation_mode,
            model=model,
            limits=self._limits,
        )
        found = self._follow(steps)
        return found[0] if preferences.is_one(prompt) else found

    def _follow(self, steps: Steps[T]) -> T:
        """Run a helper's jobs, each after the one before."""
        try:
            job = next(steps)
            while True:
                job = steps.send(self._run(job))
        except StopIteration as done:
            return done.value

    def _run(self, job: Job[T]) -> T:
        raise NotImplementedError
