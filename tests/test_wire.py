"""The wire types alone: what a request may hold, what it may not, and what the refusal says."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from mlxscore_client import wire
from mlxscore_client.wire import Health, ScoreItem, ScoreRequest, ScoreResponse


def item(**fields: Any) -> ScoreItem:
    return ScoreItem.model_validate({"context": "a", **fields})


def findings(error: ValidationError) -> str:
    return " ".join(f"{found['loc']} {found['msg']}" for found in error.errors())


def refused(data: Any) -> str:
    """What a request is refused with, the same as Python data and as JSON."""
    with pytest.raises(ValidationError) as as_data:
        ScoreRequest.model_validate(data)
    with pytest.raises(ValidationError) as as_json:
        ScoreRequest.model_validate_json(json.dumps(data))
    # The words differ a little ("list", "array"), the places do not.
    places = [[found["loc"] for found in e.value.errors()] for e in (as_data, as_json)]
    assert places[0] == places[1]
    return findings(as_json.value)


def one(**fields: Any) -> dict[str, Any]:
    return {"items": [{"context": "a", "continuation": "b", **fields}]}


def test_texts_and_ids_stay_what_they_are() -> None:
    request = ScoreRequest.model_validate_json(
        '{"items": [{"context": "", "continuations": ["b", [0, 2147483647], "é😀"], "id": "q"},'
        ' {"context": [], "continuation": [7]}]}'
    )
    assert request.items[0].all_continuations() == ["b", [0, 2**31 - 1], "é😀"]
    assert request.items[1].context == []
    assert request.items[1].all_continuations() == [[7]]
    assert item(context=(1, 2), continuation="b").context == [1, 2]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("contnuation", "did you mean 'continuation'?"),
        ("contexts", "did you mean 'context'?"),
        ("zzz", "known: context, messages, continuation, continuations, text, ids, id"),
    ],
)
def test_an_unknown_field_of_an_item_gets_a_hint(name: str, hint: str) -> None:
    assert f"unknown field '{name}'; {hint}" in refused(one(**{name: 1}))


def test_an_unknown_field_of_a_request_gets_a_hint() -> None:
    assert "did you mean 'top_logprobs'?" in refused(one() | {"top_logprob": 3})
    assert "did you mean 'items'?" in refused({"item": []})


@pytest.mark.parametrize(
    "bad", [True, False, 1.0, 1.5, "1", None, -1, 2**31, 2**63, 10**30, [1], {}]
)
@pytest.mark.parametrize("field", ["context", "continuation"])
def test_what_is_not_a_token_id_is_refused_and_its_place_told(field: str, bad: Any) -> None:
    assert f"'{field}', '<ids>', 1)" in refused(one(**{field: [5, bad]}))


@pytest.mark.parametrize("bad", [None, 1, 1.5, True, {"text": "a"}])
def test_what_is_neither_text_nor_ids_is_refused(bad: Any) -> None:
    assert "must be a text (string) or a list of token ids" in refused(one(context=bad))


@pytest.mark.parametrize("half", ["\ud83d", "\ude00", "ab\udfffc"])
@pytest.mark.parametrize("field", ["context", "continuation", "id"])
def test_half_of_a_surrogate_pair_is_refused(field: str, half: str) -> None:
    with pytest.raises(ValidationError, match="lone surrogate"):
        ScoreRequest.model_validate(one(**{field: half}))
    # json.dumps writes it as \udxxx, as any JavaScript client would.
    with pytest.raises(ValidationError):
        ScoreRequest.model_validate_json(json.dumps(one(**{field: half})))


def test_a_whole_surrogate_pair_in_json_is_one_character() -> None:
    assert ScoreRequest.model_validate_json(json.dumps(one(context="😀"))).items[0].context == "😀"


def test_exactly_one_of_continuation_and_continuations() -> None:
    with pytest.raises(ValidationError, match=r"exactly one of .* \(got neither\)"):
        item()
    with pytest.raises(ValidationError, match=r"exactly one of .* \(got both\)"):
        item(continuation="b", continuations=["c"])
    # An explicit null is as if it were left out, as other languages' serialisers write it.
    assert item(continuation=None, continuations=["c"]).all_continuations() == ["c"]


def test_empty_lists_are_refused() -> None:
    assert "at least 1 item" in refused({"items": []})
    assert "at least 1 item" in refused({"items": [{"context": "a", "continuations": []}]})


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("return_tokens", "yes"),
        ("return_tokens", 1),
        ("top_logprobs", -1),
        ("top_logprobs", "3"),
        ("top_logprobs", True),
        ("top_logprobs", 1.0),
        ("add_special_tokens", 0),
        ("boundary", "Joint"),
        ("truncation", "right"),
        ("model", 3),
        ("items", {"context": "a"}),
    ],
)
def test_a_bad_option_is_named(option: str, bad: Any) -> None:
    assert f"('{option}'," in refused(one() | {option: bad})


def answer(**more: Any) -> dict[str, Any]:
    usage = dict.fromkeys(("prompt_tokens", "total_tokens", "computed_tokens", "cached_tokens"), 1)
    return {
        "id": "score-1",
        "created": 0,
        "model": "m",
        "system_fingerprint": "f",
        "results": [],
        "usage": usage,
        **more,
    }


def test_an_answer_of_a_newer_server_is_read_and_kept() -> None:
    read = ScoreResponse.model_validate_json(json.dumps(answer(later={"x": 1})))
    assert read.model_dump()["later"] == {"x": 1}


def test_an_answer_without_its_numbers_is_none() -> None:
    with pytest.raises(ValidationError, match="usage"):
        ScoreResponse.model_validate({k: v for k, v in answer().items() if k != "usage"})
    with pytest.raises(ValidationError, match="status"):
        Health.model_validate_json('{"status": "fine"}')


def test_the_schema_s_own_examples_are_good_requests() -> None:
    for example in ScoreRequest.model_json_schema()["examples"]:
        ScoreRequest.model_validate_json(json.dumps(example))


def test_a_union_s_tags_are_no_field_s_name() -> None:
    # Both sides leave the tags out of an error's path.
    for model in (ScoreItem, ScoreRequest):
        assert not wire.UNION_TAGS & set(model.model_fields)
