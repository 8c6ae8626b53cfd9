"""The helpers against what minicons, lm-evaluation-harness and TRL compute on the same float32 weights.

golden/helpers.json holds their values; scripts/reference_helpers.py made it.
"""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

from mlxscore_client import AsyncClient, Client

TOLERANCE = 1e-3  # nats
GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "golden" / "helpers.json").read_text("utf-8")
)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def close(value: Any) -> Any:
    return pytest.approx(value, rel=0, abs=TOLERANCE)


def test_there_are_enough_cases() -> None:
    assert all(len(cases) >= 30 for cases in GOLDEN.values())
    assert set(GOLDEN) == {"surprisal", "perplexity", "classify", "dpo_logps"}


def test_surprisal_is_minicons(client: Client) -> None:
    cases = GOLDEN["surprisal"]
    texts = [case["text"] for case in cases]
    plain = client.surprisal(texts, bow_correction=False)
    corrected = client.surprisal(texts)
    in_bits = client.surprisal(texts, unit="bits")
    moved = 0.0
    for case, one, other, bits in zip(cases, plain, corrected, in_bits, strict=True):
        assert (one.bow_correction, other.bow_correction) == (False, True)
        assert [token.surprisal for token in one.tokens] == close(case["tokens"])
        assert [token.surprisal for token in other.tokens] == close(case["tokens"])
        assert [word.text for word in other.words] == case["words"]
        assert [word.surprisal for word in one.words] == close(case["surprisal"])
        assert [word.surprisal for word in other.words] == close(case["bow_correction"])
        assert -one.surprisal / len(one.tokens) == close(case["sentence_score"])
        assert [w.surprisal * math.log(2) for w in bits.words] == close(case["bow_correction"])
        assert sum(word.num_tokens for word in other.words) == len(other.tokens)
        pairs = zip(one.words, other.words, strict=True)
        moved = max(moved, *(abs(a.surprisal - b.surprisal) for a, b in pairs))
    assert moved > 1  # the correction is no matter of rounding


def test_perplexity_is_lm_evals(client: Client) -> None:
    for case in GOLDEN["perplexity"]:
        found = client.perplexity(case["texts"])
        of_each = TOLERANCE * len(case["texts"])
        assert found.loglikelihood == pytest.approx(case["loglikelihood"], rel=0, abs=of_each)
        assert found.bits_per_byte == close(case["bits_per_byte"])
        for unit, count in (("token", found.num_tokens), ("word", found.num_words)):
            # In nats: a perplexity of a million is not the place for a thousandth.
            value = getattr(found, f"{unit}_perplexity")
            assert math.log(value) == close(math.log(case[f"{unit}_perplexity"]))
            assert count == pytest.approx(-found.loglikelihood / math.log(value))
        assert found.byte_perplexity is not None
        assert math.log(found.byte_perplexity) == close(math.log(case["byte_perplexity"]))
        assert len(found.texts) == len(case["texts"])


def test_classify_is_the_papers(client: Client) -> None:
    for case in GOLDEN["classify"]:
        found = client.classify(
            case["text"], case["labels"], case["template"], calibration=case["calibration"]
        )
        assert list(found.loglikelihoods.values()) == close(case["loglikelihoods"])
        logs = [math.log(p) for p in found.probabilities.values()]
        assert logs == close(case["log_probabilities"])
        assert found.label == case["labels"][logs.index(max(logs))]


def test_dpo_logps_are_trls(client: Client) -> None:
    """Texts and conversations; whole and cut at either end, until nothing is left of a completion."""
    cuts = {(case["max_length"], case["truncation_mode"]) for case in GOLDEN["dpo_logps"]}
    kinds = {type(case["prompt"]) for case in GOLDEN["dpo_logps"]}
    assert len(cuts) > 5 and kinds == {str, list}
    for max_length, mode in cuts:
        for kind in kinds:
            cases = [
                case
                for case in GOLDEN["dpo_logps"]
                if (case["max_length"], case["truncation_mode"]) == (max_length, mode)
                and isinstance(case["prompt"], kind)
            ]
            columns = ([case[name] for case in cases] for name in ("prompt", "chosen", "rejected"))
            found = client.dpo_logps(*columns, max_length=max_length, truncation_mode=mode)
            for one, case in zip(found, cases, strict=True):
                assert one.ref_chosen_logps == close(case["ref_chosen_logps"])
                assert one.ref_rejected_logps == close(case["ref_rejected_logps"])


def test_both_clients_say_the_same(client: Client, server: ServerProcess) -> None:
    text, labels, template = "A dull film.", [" good", " bad"], "{text} It is"
    pair = ("2 + 2 =", " 4", " 5")

    async def ask() -> list[Any]:
        async with AsyncClient(server.url) as other:
            return [
                await other.rank("The capital of France is", [" London", " Paris"]),
                await other.classify(text, labels, template, calibration="contextual"),
                await other.classify([text, text], labels, template, domain="It is"),
                await other.perplexity([text]),
                await other.surprisal(text),
                await other.surprisal([text], unit="bits", bow_correction=False),
                await other.pmi("The capital of France is", " Paris"),
                await other.dpo_logps(*pair),
                await other.dpo_logps(*([part] for part in pair)),
            ]

    mine: list[Any] = [
        client.rank("The capital of France is", [" London", " Paris"]),
        client.classify(text, labels, template, calibration="contextual"),
        client.classify([text, text], labels, template, domain="It is"),
        client.perplexity([text]),
        client.surprisal(text),
        client.surprisal([text], unit="bits", bow_correction=False),
        client.pmi("The capital of France is", " Paris"),
        client.dpo_logps(*pair),
        client.dpo_logps(*([part] for part in pair)),
    ]
    for one, other in zip(mine, asyncio.run(ask()), strict=True):
        alike(one, other)


def alike(one: Any, other: Any) -> None:
    """Equal but for the rounding of another micro-batch."""
    assert type(one) is type(other)
    if isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            alike(a, b)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        alike([*one.values()], [*other.values()])
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-4)
    elif hasattr(one, "model_dump"):
        alike(one.model_dump(), other.model_dump())
    else:
        assert one == other


def test_a_conversation_ranks_what_the_template_asks_for(client: Client) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answers = ["Bananas are yellow", "The capital of France is Paris"]
    best, worst = client.rank(messages, answers)
    assert (best.index, worst.index) == (1, 0)
    assert best.loglikelihood == close(-2.0135)  # docs/api.md
    assert best.probability + worst.probability == pytest.approx(1)


def test_pmi_is_a_difference_of_loglikelihoods(client: Client) -> None:
    found = client.pmi("The capital of France is", " Paris", domain="The capital is")
    (given,) = client.score("The capital of France is", [" Paris"])
    (alone,) = client.score("The capital is", [" Paris"])
    assert found.loglikelihood == close(given.loglikelihood)
    assert found.domain_loglikelihood == close(alone.loglikelihood)
    assert found.pmi == close(given.loglikelihood - alone.loglikelihood)
    (unconditional,) = client.score("", [" Paris"])
    without = client.pmi("The capital of France is", " Paris")
    assert without.domain_loglikelihood == close(unconditional.loglikelihood)
