"""Label probabilities: SGLang's /v1/score and vLLM's /generative_scoring."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny_tokenizers
from fakes import (
    INFINITE,
    MAX_MODEL_LEN,
    NAME,
    NAN,
    VOCAB_SIZE,
    Running,
    with_app,
)
from server_process import ServerProcess
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mlxscore_client import wire
from mlxscore_server.contexts import Context, label_contexts
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.labels import LabelRows, label_rows
from mlxscore_server.pairs import EncodedItem, encode_items
from mlxscore_server.tokens import Encoder

BOTH = pytest.mark.parametrize("path", ["/v1/score", "/generative_scoring"])


def chance(*ids: int) -> float:
    """What the byte model gives these tokens in a row."""
    return math.exp(-sum(ids) / 256)


def scored(response: httpx.Response) -> list[Any]:
    """Either endpoint's numbers: a list of lists, or one number an item."""
    assert response.status_code == 200, response.text
    body = response.json()
    return body["scores"] if "scores" in body else [item["score"] for item in body["data"]]


# --- the answers ---


def test_the_whole_answer_of_v1_score() -> None:
    async def use(app: Running) -> None:
        body = {"query": "ab", "items": ["c", "de"], "label_token_ids": [10, 200, 10]}
        response = await app.client.post("/v1/score", json=body)
        scores = scored(response)
        assert scores == [pytest.approx([chance(10), chance(200), chance(10)], rel=1e-6)] * 2
        assert response.json() == {
            "scores": scores,
            "model": NAME,
            "object": "scoring",
            "usage": {
                "prompt_tokens": 3 + 4,
                "total_tokens": 3 + 4,
                "completion_tokens": 0,
                # Three labels cost no more than one: the model reads an item's context once.
                "computed_tokens": 3 + 4,
                "cached_tokens": 0,
            },
        }
        read = wire.LabelScoreResponse.model_validate_json(response.content)
        assert not read.model_extra and not read.usage.model_extra

    with_app(use)


def test_the_whole_answer_of_generative_scoring() -> None:
    async def use(app: Running) -> None:
        body = {"query": "ab", "items": ["c", "de"], "label_token_ids": [10, 200]}
        response = await app.client.post("/generative_scoring", json=body)
        first, second = scored(response)
        assert first == second == pytest.approx(chance(10) / (chance(10) + chance(200)), rel=1e-6)
        answer = response.json()
        assert re.fullmatch(r"generative-scoring-\w+", answer.pop("id"))
        assert isinstance(answer.pop("created"), int)
        assert answer.pop("usage")["completion_tokens"] == 0
        assert answer == {
            "object": "list",
            "model": NAME,
            "data": [
                {"index": 0, "object": "score", "score": first},
                {"index": 1, "object": "score", "score": second},
            ],
        }
        read = wire.GenerativeScoringResponse.model_validate_json(response.content)
        assert not read.model_extra and not read.data[0].model_extra

    with_app(use)


def test_softmax_is_over_the_labels() -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": "b", "label_token_ids": [0, 128, 0]}
        half = chance(128)
        for path, default in (("/v1/score", False), ("/generative_scoring", True)):
            for asked in (None, False, True):
                given = {} if asked is None else {"apply_softmax": asked}
                (found,) = scored(await app.client.post(path, json=body | given))
                total = 2 + half if (default if asked is None else asked) else 1
                expected = [1 / total, half / total, 1 / total]
                if path == "/generative_scoring":
                    assert found == pytest.approx(expected[0], rel=1e-6)
                else:
                    assert found == pytest.approx(expected, rel=1e-6)

    with_app(use)


def test_labels_of_any_number_of_tokens() -> None:
    async def use(app: Running) -> None:
        labels = ["y", "no way", "é"]
        expected = [chance(*label.encode()) for label in labels]
        body = {"query": "a ", "items": ["b", "c"], "labels": labels}
        for tokenization in ("joint", "separate"):
            found = scored(
                await app.client.post("/v1/score", json=body | {"tokenization": tokenization})
            )
            assert found == [pytest.approx(expected, rel=1e-6)] * 2
        found = scored(await app.client.post("/generative_scoring", json=body))
        assert found == [pytest.approx(expected[0] / sum(expected), rel=1e-6)] * 2

    with_app(use)


def test_one_text_is_one_item_and_no_items_are_no_scores() -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "label_token_ids": [5]}
        one = await app.client.post("/v1/score", json=body | {"items": "bcd"})
        assert scored(one) == [[pytest.approx(chance(5), rel=1e-6)]]
        assert one.json()["usage"]["prompt_tokens"] == 4
        for query in ("a", [97]):
            none = await app.client.post("/v1/score", json=body | {"items": [], "query": query})
            assert scored(none) == []
            assert none.json()["usage"]["prompt_tokens"] == 0

    with_app(use)


@BOTH
@pytest.mark.parametrize("model", [None, "default", NAME])
def test_names_of_the_model(path: str, model: str | None) -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": ["b"], "label_token_ids": [5], "model": model}
        response = await app.client.post(path, json=body)
        assert response.json()["model"] == NAME
        other = await app.client.post(path, json=body | {"model": "other"})
        assert (other.status_code, other.json()["error"]["param"]) == (404, "model")

    with_app(use)


@BOTH
def test_fields_of_other_servers_are_ignored(path: str) -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": ["b"], "label_token_ids": [5], "priority": 0, "rid": "x"}
        assert (await app.client.post(path, json=body)).status_code == 200

    with_app(use)


def test_many_items_are_written_off_the_loop_all_the_same() -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": ["b"] * 700, "label_token_ids": [5, 6]}
        assert len(scored(await app.client.post("/v1/score", json=body))) == 700

    with_app(use)


def test_the_schema_s_examples_work() -> None:
    async def use(app: Running) -> None:
        schema = (await app.client.get("/openapi.json")).json()
        for path, kind, answer in (
            ("/v1/score", "LabelScoreRequest", wire.LabelScoreResponse),
            ("/generative_scoring", "GenerativeScoringRequest", wire.GenerativeScoringResponse),
            ("/rerank", "RerankRequest", wire.RerankResponse),
        ):
            (example,) = schema["components"]["schemas"][kind]["examples"]
            assert (await app.client.post(path, json=example)).status_code == 200
            stated = schema["paths"][path]["post"]["responses"]["200"]
            answer.model_validate(stated["content"]["application/json"]["example"])

    with_app(use)


# --- what is refused ---


@BOTH
@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"query": None}, "query", "must be a text (string) or a list of token ids"),
        ({"query": 5}, "query", "must be a text"),
        ({"query": [1, True]}, "query[1]", "valid integer"),
        ({"query": [1, -1], "items": [[1]]}, "query[1]", "greater than or equal to 0"),
        ({"query": [1, 1.0], "items": [[1]]}, "query[1]", "valid integer"),
        ({"query": [1, VOCAB_SIZE], "items": [[1]]}, "query[1]", f"{VOCAB_SIZE} tokens"),
        ({"query": "\ud800"}, None, "not valid JSON"),
        ({"items": None}, "items", "must be a text, a list of texts"),
        ({"items": 3}, "items", "must be a text, a list of texts"),
        ({"items": {"text": "a"}}, "items", "must be a text, a list of texts"),
        ({"items": [3, 4]}, "items[0]", "valid string"),
        ({"items": ["a", [1]]}, "items[1]", "valid string"),
        ({"items": ["a", None]}, "items[1]", "valid string"),
        ({"query": [1], "items": [[1], "a"]}, "items[1]", "array"),
        ({"query": [1], "items": [[1], ["a"]]}, "items[1][0]", "valid integer"),
        ({"query": [1], "items": [[1], [2, VOCAB_SIZE]]}, "items[1][1]", f"{VOCAB_SIZE} tokens"),
        ({"items": [[1]]}, "items[0]", "query and items[0] must be of one kind"),
        ({"query": [1]}, "items[0]", "query and items[0] must be of one kind"),
        ({"query": [1], "items": "a"}, "items", "query and items must be of one kind"),
        ({"label_token_ids": []}, "label_token_ids", "must not be empty"),
        ({"label_token_ids": 5}, "label_token_ids", "valid array"),
        ({"label_token_ids": [5, "6"]}, "label_token_ids[1]", "valid integer"),
        ({"label_token_ids": [5, True]}, "label_token_ids[1]", "valid integer"),
        ({"label_token_ids": [5, 6.0]}, "label_token_ids[1]", "valid integer"),
        ({"label_token_ids": [5, -6]}, "label_token_ids[1]", "greater than or equal to 0"),
        ({"label_token_ids": [5, VOCAB_SIZE]}, "label_token_ids[1]", f"{VOCAB_SIZE} tokens"),
        ({"label_token_ids": [2**70]}, "label_token_ids[0]", "less than or equal"),
        ({"label_token_ids": None}, None, "exactly one of 'labels' and 'label_token_ids' (got ne"),
        ({"labels": ["a"]}, None, "exactly one of 'labels' and 'label_token_ids' (got both)"),
        ({"label_token_ids": None, "labels": []}, "labels", "must not be empty"),
        ({"label_token_ids": None, "labels": ["a", ""]}, "labels[1]", "must not be empty"),
        ({"label_token_ids": None, "labels": ["a", [5]]}, "labels[1]", "valid string"),
        ({"label_token_ids": None, "labels": "ab"}, "labels", "valid array"),
        ({"apply_softmax": 1}, "apply_softmax", "valid boolean"),
        ({"item_first": "yes"}, "item_first", "valid boolean"),
        ({"add_special_tokens": None}, "add_special_tokens", "valid boolean"),
        ({"tokenization": "both"}, "tokenization", "'joint' or 'separate'"),
        ({"truncation": "right"}, "truncation", "'error' or 'left'"),
        ({"model": 5}, "model", "valid string"),
    ],
)
def test_bad_fields(path: str, change: dict[str, Any], param: str | None, words: str) -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": ["b"], "label_token_ids": [5]} | change
        # As ASCII: half of a surrogate pair can be written so.
        response = await app.client.post(path, content=json.dumps(body))
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert words in error["message"]

    with_app(use)


@BOTH
@pytest.mark.parametrize("name", ["query", "items"])
def test_fields_that_are_required(path: str, name: str) -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": ["b"], "label_token_ids": [5]}
        del body[name]
        response = await app.client.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == f"{name} is required"

    with_app(use)


def test_generative_scoring_needs_items() -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": [], "label_token_ids": [5]}
        response = await app.client.post("/generative_scoring", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "items")

    with_app(use)


@BOTH
@pytest.mark.parametrize("labels", [{"label_token_ids": [5]}, {"labels": ["y"]}])
@pytest.mark.parametrize("tokenization", ["joint", "separate"])
def test_nothing_is_cut_unless_asked(path: str, labels: dict[str, Any], tokenization: str) -> None:
    async def use(app: Running) -> None:
        fits = "x" * (MAX_MODEL_LEN - 2)  # with the query and one token of a label, just so
        body = {"query": "a", "items": [fits], "tokenization": tokenization} | labels
        assert (await app.client.post(path, json=body)).status_code == 200
        body["items"] = ["b", fits + "xyz"]
        response = await app.client.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("items[1]", "context_length_exceeded")
        for number in (MAX_MODEL_LEN, MAX_MODEL_LEN + 3):
            assert str(number) in error["message"]
        assert 'truncation: "left"' in error["message"]
        cut = await app.client.post(path, json=body | {"truncation": "left"})
        assert cut.status_code == 200
        assert cut.json()["usage"]["prompt_tokens"] == 2 + MAX_MODEL_LEN - 1
        (longest,) = {len(r.ids) for r in app.scorer.batches[-1].rows if len(r.ids) > 3}
        assert longest == MAX_MODEL_LEN

    with_app(use)


@BOTH
def test_a_label_that_never_fits(path: str) -> None:
    async def use(app: Running) -> None:
        body = {
            "query": "a",
            "items": ["b"],
            "labels": ["y", "n" * MAX_MODEL_LEN],
            "truncation": "left",
        }
        response = await app.client.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("labels[1]", "context_length_exceeded")
        assert error["message"].startswith(f"labels[1] after items[0] has {MAX_MODEL_LEN} tokens")

    with_app(use)


@BOTH
@pytest.mark.parametrize("bad", [NAN, INFINITE])
def test_a_number_that_is_not_finite_names_its_item(path: str, bad: int) -> None:
    async def use(app: Running) -> None:
        body = {"query": "a", "items": ["b", "c"], "label_token_ids": [5, bad]}
        response = await app.client.post(path, json=body)
        assert response.status_code == 500
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("non_finite_logits", "items[0]")
        assert (await app.client.post(path, json=body | {"label_token_ids": [5]})).is_success

    with_app(use)


# --- from texts to ids ---


def encoder_of(tokenizer: PreTrainedTokenizerFast, limit: int | None = None) -> Encoder:
    return Encoder(tokenizer, num_embeddings=len(tokenizer), max_model_len=limit)


def rows_of(encoder: Encoder, *, generative: bool = False, **fields: Any) -> LabelRows:
    kind = wire.GenerativeScoringRequest if generative else wire.LabelScoreRequest
    request = kind.model_validate(fields)
    named = request.labels is not None
    return label_rows(
        encoder,
        label_contexts(encoder, request),
        request.labels or request.label_token_ids or [],
        labels_param="labels" if named else "label_token_ids",
        add_special_tokens=request.add_special_tokens,
        truncation=request.truncation,
    )


def ids_of(labelled: LabelRows) -> list[list[int]]:
    return [row.ids.tolist() for row in labelled.rows]


TOKENIZERS = {
    "no BOS": lambda: tiny_tokenizers.byte_level(bos=None),
    "BOS not added": tiny_tokenizers.byte_level,
    "BOS added": lambda: tiny_tokenizers.byte_level(add_bos=True),
    "BOS and EOS added": lambda: tiny_tokenizers.byte_level(add_bos=True, add_eos=True),
    "SentencePiece": tiny_tokenizers.sentencepiece,
    "SentencePiece without BOS": lambda: tiny_tokenizers.sentencepiece(add_bos=False),
}
ALL_TOKENIZERS = pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())


@ALL_TOKENIZERS
@pytest.mark.parametrize("item_first", [False, True])
def test_joint_ids_are_those_of_the_joined_text(
    make: Callable[[], PreTrainedTokenizerFast], item_first: bool
) -> None:
    tokenizer = make()
    query, items = "true An", ["swer", " true"]
    texts = [item + query if item_first else query + item for item in items]
    found = rows_of(
        encoder_of(tokenizer), query=query, items=items, label_token_ids=[9], item_first=item_first
    )
    expected = [
        [i for i in tokenizer(text).input_ids if i != tokenizer.eos_token_id] for text in texts
    ]
    assert ids_of(found) == [[*ids, 9] for ids in expected]
    assert [row.start for row in found.rows] == [len(ids) for ids in expected]
    assert found.prompt_tokens == sum(map(len, expected))


@ALL_TOKENIZERS
@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("special", [False, True])
def test_separate_ids_are_those_of_the_parts(
    make: Callable[[], PreTrainedTokenizerFast], item_first: bool, special: bool
) -> None:
    tokenizer = make()
    encoder = encoder_of(tokenizer)
    found = rows_of(
        encoder,
        generative=True,
        query="An",
        items=["swer", " true"],
        label_token_ids=[9],
        item_first=item_first,
        add_special_tokens=special,
    )
    query = tokenizer.encode("An", add_special_tokens=False)
    expected: list[list[int]] = []
    for text in ("swer", " true"):
        item = tokenizer.encode(text, add_special_tokens=False)
        both = item + query if item_first else query + item
        # Where the row begins, never inside of it.
        expected.append([*(encoder.prefix_ids if special else ()), *both, 9])
    assert ids_of(found) == expected


def test_the_two_ways_differ_where_a_token_spans_query_and_item() -> None:
    encoder = encoder_of(tiny_tokenizers.byte_level())
    given = {"query": "An", "items": ["swer"], "label_token_ids": [9]}
    (joint,) = ids_of(rows_of(encoder, **given))
    (separate,) = ids_of(rows_of(encoder, **given, tokenization="separate"))
    assert len(joint) < len(separate)
    assert ids_of(rows_of(encoder, generative=True, **given)) == [separate]
    assert ids_of(rows_of(encoder, generative=True, **given, tokenization="joint")) == [joint]


@ALL_TOKENIZERS
@pytest.mark.parametrize("context", ["Ans", "true ", "An\n", " ", ""])
@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_text_labels_follow_the_rules_of_score(
    make: Callable[[], PreTrainedTokenizerFast], context: str, boundary: wire.Boundary
) -> None:
    encoder = encoder_of(make())
    labels = ["wer", " true", "true"]
    found = rows_of(encoder, query=context, items=[""], labels=labels, tokenization=boundary)
    item = wire.ScoreItem.model_validate({"context": context, "continuations": labels})
    (expected,) = encode_items(
        encoder, [item], add_special_tokens=True, boundary=boundary, truncation="error"
    )
    assert isinstance(expected, EncodedItem)
    assert ids_of(found) == [pair.ids.tolist() for pair in expected.pairs]
    assert [row.start for row in found.rows] == [pair.start for pair in expected.pairs]


def test_never_two_bos() -> None:
    encoder = encoder_of(tiny_tokenizers.byte_level(add_bos=True))
    bos = encoder.bos_token_id
    for tokenization in ("joint", "separate"):
        for labels in ({"labels": ["x"]}, {"label_token_ids": [9]}):
            for query in ("Hi", "<s>Hi", ""):
                given = {"query": query, "items": ["true"], "tokenization": tokenization} | labels
                for ids in ids_of(rows_of(encoder, **given)):
                    assert ids.count(bos) == 1, given
                    assert ids[0] == bos
    # Ids get none.
    assert ids_of(rows_of(encoder, query=[7], items=[[8]], label_token_ids=[9])) == [[7, 8, 9]]


def test_ids_are_used_as_given_in_either_way_and_order() -> None:
    encoder = encoder_of(tiny_tokenizers.byte_level(add_bos=True))
    given = {"query": [5, 6], "items": [[7], [], [8, 8]], "label_token_ids": [9]}
    for tokenization in ("joint", "separate"):
        found = ids_of(rows_of(encoder, **given, tokenization=tokenization))
        assert found == [[5, 6, 7, 9], [5, 6, 9], [5, 6, 8, 8, 9]]
        found = ids_of(rows_of(encoder, **given, tokenization=tokenization, item_first=True))
        assert found == [[7, 5, 6, 9], [5, 6, 9], [8, 8, 5, 6, 9]]


def test_an_empty_context_is_bos_else_eos_else_refused() -> None:
    for options, stand_in in (({}, 0), ({"bos": None}, 0)):
        encoder = encoder_of(tiny_tokenizers.byte_level(**options))
        for empty in ({"query": "", "items": [""]}, {"query": [], "items": [[]]}):
            for tokenization in ("joint", "separate"):
                given = empty | {"tokenization": tokenization}
                # The label may be the very id that stands in.
                found = ids_of(rows_of(encoder, **given, label_token_ids=[9, stand_in]))
                assert found == [[stand_in, 9], [stand_in, stand_in]]
                assert rows_of(encoder, **given, labels=["x"]).rows[0].ids[0] == stand_in
    neither = encoder_of(tiny_tokenizers.byte_level(bos=None, eos=None))
    for labels in ({"label_token_ids": [9]}, {"labels": ["x"]}):
        with pytest.raises(InvalidRequest, match=r"items\[1\] and the query are empty") as refused:
            rows_of(neither, query="", items=["a", ""], **labels)
        assert refused.value.param == "items[1]"


def test_a_label_is_named_with_the_context_that_it_comes_after() -> None:
    """Whatever `/score` says of a continuation is said in the sender's own terms."""
    contexts = [Context("a", "items[0]"), Context("Ans", "items[1]")]

    def refused(encoder: Encoder, labels: list[str], field: str | None) -> InvalidRequest:
        with pytest.raises(InvalidRequest) as caught:
            label_rows(
                encoder,
                contexts,
                labels,
                labels_param=field,
                add_special_tokens=True,
                truncation="error",
            )
        assert "continuation" not in caught.value.message
        return caught.value

    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("?", "")
    silent = encoder_of(tokenizer)
    short = encoder_of(tiny_tokenizers.byte_level(), limit=4)
    narrow = Encoder(tiny_tokenizers.byte_level(), num_embeddings=262, max_model_len=None)
    for encoder, labels, said, after in (
        (silent, ["x", "?"], "adds no token to its context", "items[0]"),
        (
            short,
            ["x", "xxxx"],
            "has 4 tokens, which with at least one token of context",
            "items[0]",
        ),
        (narrow, ["x", "wer"], "holds token id", "items[1]"),  # "Answer" is one token
    ):
        of_labels = refused(encoder, labels, "labels")
        assert of_labels.param == "labels[1]"
        assert of_labels.message.startswith(f"labels[1] after {after} {said}")
        # The sender of documents has no say in the answers.
        of_documents = refused(encoder, labels, None)
        assert of_documents.param == after
        assert of_documents.message.startswith(f"the answer after {after} {said}")
        assert of_documents.code == of_labels.code


def test_a_tokenizer_that_does_not_fit_the_model_is_refused() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    encoder = Encoder(tokenizer, num_embeddings=len(tokenizer) - 1, max_model_len=None)  # no " ld"
    for tokenization in ("joint", "separate"):
        for labels in ({"label_token_ids": [9]}, {"labels": ["x"]}):
            with pytest.raises(InvalidRequest, match="holds token id"):
                rows_of(
                    encoder, query="wor", items=["ld", "ld"], tokenization=tokenization, **labels
                )


def test_probabilities_of_one_item_do_not_depend_on_the_others() -> None:
    encoder = encoder_of(tiny_tokenizers.byte_level())
    given = {"query": "q", "label_token_ids": [9, 10]}
    together = ids_of(rows_of(encoder, items=["a", "b", "c"], **given))
    apart = [ids_of(rows_of(encoder, items=[item], **given)) for item in "abc"]
    assert together == [ids for rows in apart for ids in rows]


# --- the real model ---


def post(server: ServerProcess, path: str, **body: Any) -> Any:
    response = httpx.post(server.url + path, json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_probabilities_are_those_of_score_and_of_the_whole_softmax(
    server: ServerProcess, default_model: Any, default_model_dir: Path
) -> None:
    import mlx.core as mx

    tokenizer: Any = AutoTokenizer.from_pretrained(str(default_model_dir))
    query, items = "Is the following city the capital of France? ", ["Paris", "London"]
    labels = [" Yes", " No", " Of course not"]
    first_ids = [tokenizer.encode(label, add_special_tokens=False)[0] for label in labels]
    by_id = post(server, "/v1/score", query=query, items=items, label_token_ids=first_ids)
    for item, found in zip(items, by_id["scores"], strict=True):
        ids = tokenizer.encode(query + item)
        logits = default_model(mx.array([ids]))[0, -1].astype(mx.float32)
        expected = np.array(mx.softmax(logits))[first_ids]
        assert found == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)
    by_text = post(server, "/v1/score", query=query, items=items, labels=labels)["scores"]
    results = post(
        server, "/score", items=[{"context": query + i, "continuations": labels} for i in items]
    )["results"]
    for found, result in zip(by_text, results, strict=True):
        expected = [math.exp(score["loglikelihood"]) for score in result["scores"]]
        assert found == pytest.approx(expected, abs=1e-5)
        assert sum(found) < 1
    # One-token labels: the same whichever way they come.
    assert [found[:2] for found in by_text] == [
        pytest.approx(found[:2], abs=1e-6) for found in by_id["scores"]
    ]
    soft = post(server, "/v1/score", query=query, items=items, labels=labels, apply_softmax=True)
    generative = post(
        server, "/generative_scoring", query=query, items=items, labels=labels, tokenization="joint"
    )
    for scores, found, data in zip(by_text, soft["scores"], generative["data"], strict=True):
        expected = [score / sum(scores) for score in scores]
        assert found == pytest.approx(expected, abs=1e-5)
        assert data["score"] == pytest.approx(found[0], abs=1e-6)
    one = post(server, "/v1/score", query=query, items=items[1], labels=labels)["scores"]
    assert one == [pytest.approx(by_text[1], abs=1e-5)]


def test_the_requests_of_sglang_s_and_vllm_s_documentation(server: ServerProcess) -> None:
    sglang = post(
        server,
        "/v1/score",
        query="<|user|>Is the following city the capital of France? ",
        items=["Paris <|assistant|>", "London <|assistant|>", "Berlin <|assistant|>"],
        label_token_ids=[2332, 1223],
        item_first=False,
        model="default",
    )
    assert [len(scores) for scores in sglang["scores"]] == [2, 2, 2]
    assert all(0 < score < 1 for scores in sglang["scores"] for score in scores)
    assert sglang["object"] == "scoring"
    name = sglang["model"]
    vllm = post(
        server,
        "/generative_scoring",
        model=name,
        query="Is this city the capital of France?",
        items=["Paris", "London", "Berlin"],
        label_token_ids=[9454, 2753],
    )
    assert [item["index"] for item in vllm["data"]] == [0, 1, 2]
    assert all(0 < item["score"] < 1 for item in vllm["data"])
    # Made by hand: apart, then the two probabilities' share.
    ids = [
        post(server, "/v1/score", query=q, items=[i], label_token_ids=[9454, 2753])["scores"][0]
        for q, i in [("Is this city the capital of France?", "Paris")]
    ]
    assert vllm["data"][0]["score"] == pytest.approx(ids[0][0] / sum(ids[0]), abs=1e-5)
