"""Reference logprobs for DPO, as TRL's DPOTrainer computes them before training (`precompute_ref_log_probs`).

Its rules (TRL 1.16, `DPOTrainer._prepare_dataset`, `DataCollatorForPreference`): text completions end
with the EOS; conversations go through the model's chat template, the prompt with the generation prompt;
a completion is what follows the longest common prefix of the prompt's ids and those of prompt and
completion together, the shorter one of the two completions' prefixes; prompt and completion together are
cut to `max_length`. The value is the sum of the logprobs of the completion's tokens, the first token of
a row being scored never: nothing comes before it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from mlxscore_client.calls import Limits
from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.helpers import asked
from mlxscore_client.helpers.choices import one_of
from mlxscore_client.helpers.preferences import common, encoded, triples
from mlxscore_client.helpers.result import Result, Steps
from mlxscore_client.wire import ScoreResponse

TruncationMode = Literal["keep_start", "keep_end"]


class DPOLogps(Result):
    """One pair's reference logprobs, by TRL's names."""

    ref_chosen_logps: float = Field(description="Sum over the chosen completion's tokens, nats.")
    ref_rejected_logps: float = Field(
        description="Sum over the rejected completion's tokens, nats."
    )
    prompt_tokens: int = Field(description="Of the prompt, before it is cut.")
    chosen_tokens: int = Field(description="Scored.")
    rejected_tokens: int = Field(description="Scored.")


@dataclass(frozen=True)
class _Row:
    """Prompt and completion, cut; `start` is where the completion begins, at least 1."""

    ids: list[int]
    start: int

    @property
    def num_scored(self) -> int:
        return max(0, len(self.ids) - self.start)


def dpo_logps(
    prompt: Any,
    chosen: Any,
    rejected: Any,
    *,
    max_length: int | None,
    truncation_mode: TruncationMode,
    model: str | None,
    limits: Limits,
) -> Steps[list[DPOLogps]]:
    """See `Client.dpo_logps`; a list also of one pair."""
    one_of(truncation_mode, TruncationMode, "truncation_mode")
    if max_length is not None and max_length < 1:
        raise InvalidRequestError("max_length: must be at least 1", param="max_length")
    pairs_given, names = triples(prompt, chosen, rejected)
    of_pairs: list[list[list[int]]] = yield from encoded(pairs_given, names)
    prompts = [min(common(ids[0], ids[1]), common(ids[0], ids[2])) for ids in of_pairs]
    pairs = [
        tuple(_cut(ids, length, max_length, truncation_mode) for ids in triple[1:])
        for triple, length in zip(of_pairs, prompts, strict=True)
    ]
    rows = [(i, part, row) for i, pair in enumerate(pairs) for part, row in enumerate(pair, 1)]
    scored = [one for one in rows if one[2].num_scored]
    sums: dict[tuple[int, int], float] = {}
    if scored:
        items = [
            {"context": row.ids[: row.start], "continuation": row.ids[row.start :]}
            for _, _, row in scored
        ]
        response: ScoreResponse = yield asked.score(
            items,
            {"model": model},
            limits,
            lambda at, _field, _which: names(scored[at][0], scored[at][1]),
        )
        sums = {
            (i, part): result.scores[0].loglikelihood
            for (i, part, _), result in zip(scored, response.results, strict=True)
        }
    return [
        DPOLogps(
            ref_chosen_logps=sums.get((i, 1), 0.0),
            ref_rejected_logps=sums.get((i, 2), 0.0),
            prompt_tokens=prompts[i],
            chosen_tokens=pair[0].num_scored,
            rejected_tokens=pair[1].num_scored,
        )
        for i, pair in enumerate(pairs)
    ]


def _cut(ids: list[int], start: int, max_length: int | None, mode: TruncationMode) -> _Row:
    excess = 0 if max_length is None else max(0, len(ids) - max_length)
    if mode == "keep_start":
        return _Row(ids[: len(ids) - excess], max(1, start))
    return _Row(ids[excess:], max(1, start - excess))
