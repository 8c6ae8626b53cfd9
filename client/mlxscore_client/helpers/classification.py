"""Texts to one of a few labels, by how likely each label is after the text; calibrated or not.

With l(y | c) the loglikelihood of label y after c in nats, divided by its length where that is asked
for, a label's score is

* none: l(y | text)
* contextual (Zhao et al. 2021, "Calibrate Before Use"): l(y | text) - log p(y), p(y) being the mean
  of exp(l(y | c)) over content-free inputs c. That is their diagonal W = diag(p)^-1 with b = 0,
  applied to probabilities, which then are made to add up to 1;
* pmi (Holtzman et al. 2021, "Surface Form Competition", PMI_DC): l(y | text) - l(y | domain premise).

Probabilities are the softmax of the scores.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import Field

from mlxscore_client.calls import Limits
from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.choices import Normalize, log_sum_exp, normalized, one_of, softmax
from mlxscore_client.helpers.result import Result, Steps
from mlxscore_client.wire import ScoreResponse, ScoreResult, Truncation

Calibration = Literal["none", "contextual", "pmi"]
Labels = Sequence[str] | Mapping[str, str]

CONTENT_FREE = ("N/A", "[MASK]", "")
"""The inputs that Zhao et al. average over."""

_SLOT = "{text}"


class Classification(Result):
    """One text's label."""

    label: str = Field(description="The likeliest.")
    probabilities: dict[str, float] = Field(
        description="Of each label, among the labels: they add up to 1. Calibrated where that was asked for."
    )
    scores: dict[str, float] = Field(description="What the probabilities are the softmax of, nats.")
    loglikelihoods: dict[str, float] = Field(
        description="Of each label after the text, as the model has it, nats."
    )


def classify(
    texts: str | Iterable[str],
    labels: Labels,
    template: str,
    *,
    calibration: Calibration,
    content_free: Sequence[str],
    domain: str | None,
    normalize: Normalize,
    truncation: Truncation,
    model: str | None,
    limits: Limits,
) -> Steps[list[Classification]]:
    """See `Client.classify`; a list also of one text."""
    one_of(calibration, Calibration, "calibration")
    one_of(normalize, Normalize, "normalize")
    names, said = _labels(labels)
    given = asked.texts(texts, "texts")
    if not given:
        return []
    contexts = [_filled(template, text) for text in given]
    beside, of_beside = _beside(template, calibration, content_free, domain)
    items = [{"context": context, "continuations": said} for context in [*contexts, *beside]]

    def name(at: int, field: str, which: int | None) -> str:
        place = at - len(given)
        of = f"texts[{at}]" if place < 0 else of_beside[place]
        return of if which is None else f"{of}.labels[{which}]"

    options: dict[str, Any] = {"truncation": truncation, "model": model}
    response: ScoreResponse = yield asked.score(items, options, limits, name)

    def by_length(result: ScoreResult) -> list[float]:
        pairs = zip(result.scores, said, strict=True)
        return [normalized(score, label, normalize) for score, label in pairs]

    of_texts, of_rest = response.results[: len(given)], response.results[len(given) :]
    rest = [by_length(result) for result in of_rest]
    prior = [log_sum_exp(column) - math.log(len(rest)) for column in zip(*rest, strict=True)]
    found: list[Classification] = []
    for result in of_texts:
        scores = by_length(result)
        if rest:
            scores = [one - other for one, other in zip(scores, prior, strict=True)]
        best = max(range(len(names)), key=scores.__getitem__)
        found.append(
            Classification(
                label=names[best],
                probabilities=dict(zip(names, softmax(scores), strict=True)),
                scores=dict(zip(names, scores, strict=True)),
                loglikelihoods={
                    name: score.loglikelihood
                    for name, score in zip(names, result.scores, strict=True)
                },
            )
        )
    return found


def _beside(
    template: str, calibration: Calibration, content_free: Sequence[str], domain: str | None
) -> tuple[list[str], list[str]]:
    """The contexts after which labels are scored for the calibration, and the arguments they come from."""
    if calibration == "none":
        return [], []
    if calibration == "contextual":
        free = asked.texts(content_free, "content_free")
        if not free:
            raise InvalidRequestError(
                "content_free: needs one input at least", param="content_free"
            )
        named = [f"content_free[{k}]" for k in range(len(free))]
        return [_filled(template, text) for text in free], named
    if domain is None:
        domain = template.partition(_SLOT)[2].lstrip()
        if not domain:
            raise InvalidRequestError(
                "domain: the template ends with {text}, so nothing of it can stand for the domain; give the "
                "premise after which labels are scored without a text",
                param="domain",
            )
    return [domain], ["domain"]


def _labels(labels: Any) -> tuple[list[str], list[str]]:
    """Their names, and what is scored for each."""
    if isinstance(labels, Mapping):
        given = cast(Mapping[str, str], labels)
        names, said = list(given), list(given.values())
    elif isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InvalidRequestError(
            "labels: must be a list of texts, or a mapping of names to texts", param="labels"
        )
    else:
        said = list(cast(Iterable[str], labels))
        names = said
    if not names:
        raise InvalidRequestError("labels: needs one label at least", param="labels")
    for j, label in enumerate(said):
        if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            param = f"labels[{j}]"
            raise InvalidRequestError(f"{param}: must be a text (string)", param=param)
        if not label:
            param = f"labels[{j}]"
            raise InvalidRequestError(f"{param}: is empty: there is nothing to score", param=param)
        if names.index(names[j]) != j:
            param = f"labels[{j}]"
            raise InvalidRequestError(f"{param}: {names[j]!r} is there twice", param=param)
    return names, said


def _filled(template: str, text: str) -> str:
    # Not str.format: a template of code or JSON is full of braces.
    if template.count(_SLOT) != 1:
        raise InvalidRequestError(
            f"template: must hold {_SLOT} once, where the text goes", param="template"
        )
    return template.replace(_SLOT, text)
