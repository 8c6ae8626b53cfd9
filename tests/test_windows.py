"""Whole texts: how they are cut (against lm-evaluation-harness's own cuts), what /score answers."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import (
    BOS,
    MAX_MODEL_LEN,
    NAN,
    VOCAB_SIZE,
    Running,
    error_of,
    loglikelihood,
    with_app,
)
from hypothesis import given
from hypothesis import strategies as st
from server_process import ServerProcess
from tiny_tokenizers import byte_level, sentencepiece
from tokenizers import normalizers

from mlxscore_client import (
    AsyncClient,
    BadRequestError,
    Client,
    InvalidRequestError,
    InvalidResponseError,
    wire,
)
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.pairs import encode_items
from mlxscore_server.row import Row
from mlxscore_server.tokens import Encoder
from mlxscore_server.whole_text import EncodedText
from mlxscore_server.windows import Windowing

PREFIX = 7
ROLLING: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "golden" / "lm_eval_rolling.json").read_text()
)


def ids_of(count: int, first: int = 100) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


# How ids are cut.


def test_the_cuts_are_lm_evals_own() -> None:
    assert len(ROLLING["windows"]) > 80
    for case in ROLLING["windows"]:
        size, stride = case["size"], case["size"] - case["context"] + 1
        windowing = Windowing.of(size, None if stride == size else stride, limit=None)
        added, windows = windowing.cut(ids_of(case["count"]), PREFIX, "text")
        assert added == 1
        found = [[w.ids[: w.start].tolist(), w.ids[w.start :].tolist()] for w in windows]
        assert found == case["windows"], case


@given(
    count=st.integers(1, 200),
    size=st.integers(1, 40),
    stride=st.integers(1, 40),
    kind=st.sampled_from(["put", "own", "none"]),
    every=st.booleans(),
)
def test_each_token_is_scored_once_in_full_windows(
    count: int, size: int, stride: int, kind: str, every: bool
) -> None:
    stride = min(size, stride)
    every = every and kind != "none"
    text = ids_of(count)
    if kind == "own":
        text[0] = PREFIX
    prefix_id = None if kind == "none" else PREFIX
    windowing = Windowing.of(size, stride, limit=size, prefix_in_every=every)
    if kind != "put" and count == 1:
        with pytest.raises(InvalidRequest, match="nothing is left to score"):
            windowing.cut(text, prefix_id, "text")
        return
    added, windows = windowing.cut(text, prefix_id, "text")
    assert added == (kind == "put")
    whole = np.concatenate([[PREFIX] * added, text])
    assert np.concatenate([w.ids[w.start :] for w in windows]).tolist() == whole[1:].tolist()
    end = 1
    for i, window in enumerate(windows):
        row = Row(window.ids, window.start)  # raises where nothing is scored, or nothing before it
        end += row.num_targets
        assert row.num_inputs == min(size, len(whole) - 1)
        if i:
            assert row.num_targets <= stride
            assert row.num_targets == stride or i == len(windows) - 1
        expected = whole[end - len(window.ids) : end].copy()
        if every:
            expected[0] = PREFIX
        assert window.ids.tolist() == expected.tolist()
    assert windows[0].start == 1


def test_a_long_text_is_not_copied() -> None:
    text = ids_of(1_000_000)
    _, (first, *others) = Windowing.of(2048, 512, limit=None).cut(text, PREFIX, "text")
    assert len(first.ids) == 2049
    assert len(others) == math.ceil((1_000_000 - 2048) / 512)
    assert all(np.shares_memory(window.ids, text) for window in others)


def test_the_window_is_the_models_limit_else_2048() -> None:
    for limit, size in ((512, 512), (None, 2048)):
        assert Windowing.of(None, None, limit=limit).size == size
    assert Windowing.of(512, None, limit=512) == Windowing(512, 512)
    # A tokenizer's "no limit" is no number to refuse a window with.
    assert Windowing.of(10**6, None, limit=None).size == 10**6


@pytest.mark.parametrize(
    ("size", "stride", "limit", "param", "said"),
    [
        (513, None, 512, "window", "512"),
        (8, 9, 512, "stride", "only 8"),
        (None, 513, 512, "stride", "512 tokens (the default)"),
        (None, 2049, None, "stride", "2048 tokens (the default)"),
    ],
)
def test_windows_that_cannot_be(
    size: int | None, stride: int | None, limit: int | None, param: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Windowing.of(size, stride, limit=limit)
    assert caught.value.param == param
    assert said in caught.value.message


# What a text is.


def encoded(encoder: Encoder, **item: Any) -> EncodedText:
    (found,) = encode_items(
        encoder,
        [wire.ScoreItem(**item)],
        add_special_tokens=None,
        boundary="joint",
        truncation="error",
    )
    assert isinstance(found, EncodedText)
    return found


def encoder_of(tokenizer: Any, limit: int | None = 64) -> Encoder:
    return Encoder(tokenizer, num_embeddings=len(tokenizer), max_model_len=limit)


def test_figures_are_lm_evals_own() -> None:
    encoder = encoder_of(byte_level())
    for case in ROLLING["figures"]:
        text = encoded(encoder, text=case["text"])
        assert (text.num_words, text.num_bytes) == (case["num_words"], case["num_bytes"])
        figures = text.figures(case["loglikelihood"], 4)
        assert figures.pop("token_perplexity") == math.exp(-case["loglikelihood"] / 4)
        assert figures == {name: case[name] for name in figures}


@pytest.mark.parametrize(
    ("tokenizer", "text", "begins"),
    [
        (byte_level(), "Answer", ["<s>", "Answer"]),
        # The tokenizer's own BOS and EOS are left out: never two.
        (byte_level(add_bos=True, add_eos=True), "Answer", ["<s>", "Answer"]),
        (byte_level(bos=None), "Answer", ["</s>", "Answer"]),
        (sentencepiece(), "true", ["<s>", "▁true"]),
        (byte_level(), "<s>Answer", ["<s>", "Answer"]),
    ],
)
def test_one_prefix_token_before_a_text(tokenizer: Any, text: str, begins: list[str]) -> None:
    found = encoded(encoder_of(tokenizer), text=text)
    (window,) = found.windows
    assert tokenizer.convert_ids_to_tokens(window.ids.tolist()) == begins
    assert window.start == 1
    assert found.context_tokens == (not text.startswith("<s>"))
    assert found.num_chars == len(text)
    as_ids = encoded(encoder_of(tokenizer), ids=window.ids.tolist())
    assert as_ids.windows[0].ids.tolist() == window.ids.tolist()
    assert as_ids.context_tokens == 0


def test_without_a_prefix_token_the_first_token_is_context_only() -> None:
    encoder = encoder_of(byte_level(bos=None, eos=None), limit=2)
    found = encoded(encoder, text="abcd")
    assert found.context_tokens == 0
    assert [(len(w.ids), w.start) for w in found.windows] == [(3, 1), (3, 2)]
    with pytest.raises(InvalidRequest, match="neither a BOS nor an EOS") as caught:
        encoded(encoder, text="a")
    assert caught.value.param == "items[0].text"
    every = Windowing.of(None, None, limit=2, prefix_in_every=True)
    with pytest.raises(InvalidRequest, match="neither a BOS nor an EOS") as caught:
        every.cut(ids_of(4), None, "text")
    assert caught.value.param == "prefix_in"


def test_a_text_that_encodes_to_nothing() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Strip()
    with pytest.raises(InvalidRequest, match="no tokens at all") as caught:
        encoded(encoder_of(tokenizer), text=" \n ")
    assert caught.value.param == "items[0].text"


def test_ids_are_measured_in_what_they_decode_to() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("An é\nwer", add_special_tokens=False)
    found = encoded(encoder_of(tokenizer), ids=ids)
    assert (found.num_bytes, found.num_chars, found.num_words) == (9, 8, 3)
    beyond = len(tokenizer)  # an id of the embedding that the tokenizer has no text for
    encoder = Encoder(tokenizer, num_embeddings=beyond + 1, max_model_len=64)
    nothing = encoded(encoder, ids=[beyond, beyond])
    assert (nothing.num_bytes, nothing.num_words) == (0, 1)
    figures = nothing.figures(-1.0, 2)
    assert figures["bits_per_byte"] is figures["byte_perplexity"] is None
    assert figures["token_perplexity"] == math.exp(0.5)


# What /score answers.


async def result_of(app: Running, **body: Any) -> dict[str, Any]:
    """The one result of a request for one item."""
    response = await app.score(**body)
    assert response.status_code == 200, response.text
    wire.ScoreResponse.model_validate_json(response.content)
    (result,) = response.json()["results"]
    return result


def rows_of(app: Running) -> list[Row]:
    rows = [row for batch in app.scorer.batches for row in batch.rows]
    app.scorer.batches.clear()
    return sorted(rows, key=lambda row: row.ids[1:].tolist())


def test_the_whole_answer() -> None:
    text = "Héllo  world, this"

    async def use(app: Running) -> None:
        nats = -loglikelihood(text)
        assert await result_of(app, items=[{"text": text, "id": "t"}], window=8) == {
            "index": 0,
            "id": "t",
            "context_tokens": 1,
            "truncated_tokens": 0,
            "scores": [
                {
                    "index": 0,
                    "loglikelihood": -nats,
                    "is_greedy": False,
                    "num_tokens": 19,
                    "num_bytes": 19,
                    "num_chars": 18,
                    "merged_boundary": False,
                    "num_words": 3,
                    "num_windows": 3,
                    "bits_per_byte": nats / 19 / math.log(2),
                    "token_perplexity": math.exp(nats / 19),
                    "word_perplexity": math.exp(nats / 3),
                    "byte_perplexity": math.exp(nats / 19),
                }
            ],
        }

    with_app(use)


@pytest.mark.parametrize("prefix_in", ["first", "every"])
def test_what_the_windows_read(prefix_in: str) -> None:
    async def use(app: Running) -> None:
        body = {"items": [{"text": "abcdefgh"}], "window": 4, "stride": 3, "prefix_in": prefix_in}
        result = await result_of(app, **body)
        assert result["scores"][0]["num_windows"] == 3
        seen = [(bytes(row.ids[1:].tolist()), int(row.ids[0]), row.start) for row in rows_of(app)]
        inner = {"first": [BOS, ord("c"), ord("d")], "every": [BOS] * 3}[prefix_in]
        expected = [(b"abcd", 1), (b"defg", 2), (b"efgh", 4)]
        assert seen == [
            (read, first, start) for (read, start), first in zip(expected, inner, strict=True)
        ]

    with_app(use)


def test_a_window_may_be_the_models_whole_limit() -> None:
    async def use(app: Running) -> None:
        for length, windows in ((MAX_MODEL_LEN, 1), (MAX_MODEL_LEN + 1, 2)):
            result = await result_of(app, items=[{"text": "a" * length}])
            (score,) = result["scores"]
            assert (score["num_tokens"], score["num_windows"]) == (length, windows)
            assert {row.num_inputs for row in rows_of(app)} == {MAX_MODEL_LEN}

    with_app(use)


def test_tokens_of_all_windows_in_order() -> None:
    async def use(app: Running) -> None:
        body = {"items": [{"text": "café au lait"}], "window": 5, "stride": 2, "top_logprobs": 2}
        (score,) = (await result_of(app, **body))["scores"]
        assert score["num_windows"] == 5
        assert bytes(b for token in score["tokens"] for b in token["bytes"]).decode() == (
            "café au lait"
        )
        for token in score["tokens"]:
            assert token["logprob"] == -token["id"] / 256
            assert [top["id"] for top in token["top"]] == [0, 1]
        assert sum(token["logprob"] for token in score["tokens"]) == score["loglikelihood"]

    with_app(use)


def test_all_kinds_of_items_in_one_request() -> None:
    async def use(app: Running) -> None:
        items: list[dict[str, Any]] = [
            {"context": "a", "continuations": ["b", "cc"], "id": "1"},
            {"text": "some text of windows", "id": "2"},
            {"ids": [0, 0, 0, 0, 0, 0, 0], "id": "3"},
            {"context": [9], "continuation": [8, 8], "id": "4"},
            {"text": "<s>ab"},
        ]
        response = await app.score(items=items, window=4, boundary="separate", truncation="left")
        results = response.json()["results"]
        assert [r.get("id") for r in results] == ["1", "2", "3", "4", None]
        assert [len(r["scores"]) for r in results] == [2, 1, 1, 1, 1]
        assert results[0]["scores"][1]["loglikelihood"] == loglikelihood("cc")
        assert results[1]["scores"][0]["loglikelihood"] == loglikelihood("some text of windows")
        assert results[2]["scores"][0]["is_greedy"]
        assert results[3]["scores"][0]["loglikelihood"] == -16 / 256
        assert "num_words" not in results[0]["scores"][0]
        # Its own BOS is the context, and is not scored.
        assert (results[4]["context_tokens"], results[4]["scores"][0]["num_tokens"]) == (0, 2)
        assert results[4]["scores"][0]["num_bytes"] == 5

    with_app(use)


def test_a_single_token() -> None:
    async def use(app: Running) -> None:
        (score,) = (await result_of(app, items=[{"text": "a"}]))["scores"]
        assert score["loglikelihood"] == loglikelihood("a")
        assert (score["num_tokens"], score["num_windows"]) == (1, 1)

    with_app(use)


def test_what_a_float_cannot_hold_is_null() -> None:
    async def use(app: Running) -> None:
        (score,) = (await result_of(app, items=[{"text": "\u00ff" * 1000}]))["scores"]
        assert score["word_perplexity"] is None  # one word of more than 710 nats
        assert math.isfinite(score["byte_perplexity"])
        assert score["bits_per_byte"] == pytest.approx(-score["loglikelihood"] / 2000 / math.log(2))

    with_app(use)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"items": [{"text": ""}]}, "items[0].text", "empty"),
        ({"items": [{"ids": []}]}, "items[0].ids", "empty"),
        ({"items": [{"text": ["a"]}]}, "items[0].text", "string"),
        ({"items": [{"text": 3}]}, "items[0].text", "string"),
        ({"items": [{"ids": "ab"}]}, "items[0].ids", "array"),
        ({"items": [{"ids": [65, True]}]}, "items[0].ids[1]", "integer"),
        ({"items": [{"ids": [65, -1]}]}, "items[0].ids[1]", "greater"),
        ({"items": [{"ids": [65, VOCAB_SIZE]}]}, "items[0].ids[1]", str(VOCAB_SIZE)),
        ({"items": [{"text": "a", "ids": [65]}]}, "items[0]", "text and ids"),
        ({"items": [{"text": "a", "context": "b"}]}, "items[0]", "context and text"),
        ({"items": [{"text": "a", "continuation": "b"}]}, "items[0]", "continuation"),
        ({"items": [{"ids": [65], "continuations": ["b"]}]}, "items[0]", "continuations"),
        ({"items": [{"text": "<s>"}]}, "items[0].text", f"id {BOS}"),
        ({"items": [{"ids": [BOS]}]}, "items[0].ids", "nothing is left"),
        ({"window": 1}, "window", "2"),
        ({"window": True}, "window", "integer"),
        ({"window": 8.0}, "window", "integer"),
        ({"window": "8"}, "window", "integer"),
        ({"window": MAX_MODEL_LEN + 1}, "window", f"limit is {MAX_MODEL_LEN}"),
        ({"stride": 0}, "stride", "1"),
        ({"stride": "1"}, "stride", "integer"),
        ({"stride": 5, "window": 4}, "stride", "only 4"),
        ({"stride": MAX_MODEL_LEN + 1}, "stride", str(MAX_MODEL_LEN)),
        ({"prefix_in": "all"}, "prefix_in", "every"),
        ({"prefix_in": None}, "prefix_in", "every"),
    ],
)
def test_a_bad_field_is_named(body: dict[str, Any], param: str, said: str) -> None:
    async def use(app: Running) -> None:
        response = await app.score(**({"items": [{"text": "abc"}]} | body))
        assert response.status_code == 400
        error = error_of(response)
        assert error.param == param
        assert said in error.message
        assert param in error.message
        assert (await app.score(items=[{"text": "abc"}])).status_code == 200

    with_app(use)


def test_overlap_may_not_make_more_work_than_the_queue_holds() -> None:
    async def use(app: Running) -> None:
        items = [{"context": "a", "continuation": "b"}, {"text": "a" * 100}]
        response = await app.score(items=items, window=50, stride=1)
        assert response.status_code == 400
        error = error_of(response)
        assert error.param == "stride"
        for part in ("items[1].text", "100", str(51 * 50), "--max-queued-tokens", "200"):
            assert part in error.message
        for fine in ({"window": 50, "stride": 25}, {"window": 2}, {"stride": 1}):
            assert (await app.score(items=items, **fine)).status_code == 200
        # Disjoint windows read each token once, however many there are.
        assert (await app.score(items=[{"text": "a" * 500}])).status_code == 200

    with_app(use, max_queued_tokens=200)


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_window_without_a_finite_score_names_its_text(as_ids: bool) -> None:
    async def use(app: Running) -> None:
        bad = "a" * 20 + chr(NAN) + "b"
        item = {"ids": list(bad.encode())} if as_ids else {"text": bad}
        items = [{"text": "c" * 9}, {"context": "a", "continuations": ["b", "c"]}, item]
        response = await app.score(items=items, window=4)
        assert response.status_code == 500
        error = error_of(response)
        assert (error.code, error.param) == (
            "non_finite_logits",
            "items[2].ids" if as_ids else "items[2].text",
        )

    with_app(use)


# The clients.


def test_the_clients_split_whole_texts_and_join_their_answers() -> None:
    async def use(app: Running) -> None:
        sizes: list[int] = []

        async def count(request: httpx.Request) -> None:
            sizes.append(len(request.content))

        texts: list[Any] = ["a" * n for n in (5, 40, 900, 1, 30)]
        texts += [np.frombuffer(b"xyz" * 9, np.uint8), (7, 8, 9), range(7, 10)]
        expected = [loglikelihood(text) for text in texts[:5]]
        expected += [loglikelihood(b"xyz" * 9), -24 / 256, -24 / 256]
        transport = httpx.ASGITransport(app.app)
        async with AsyncClient(transport=transport, max_bytes_per_request=200) as client:
            client._http.event_hooks["request"].append(count)
            assert await client.loglikelihood_rolling(texts, window=16, stride=8) == expected
            assert len(sizes) > 3
            assert sum(size > 200 for size in sizes) == 1  # the long text, alone
            assert await client.loglikelihood_rolling([]) == []
            items: list[dict[str, Any]] = [
                {"text": "ab" * 50, "id": "x"},
                {"context": "a", "continuations": ["b"] * 100},
                {"ids": np.array([8, 9])},
            ]
            response = await client.score_items(items, window=16, prefix_in="every")
        assert [(r.index, r.id, len(r.scores)) for r in response.results] == [
            (0, "x", 1),
            (1, None, 100),
            (2, None, 1),
        ]
        assert response.results[0].scores[0].num_windows == 7
        assert response.results[1].scores[0].num_words is None

    with_app(use)


@pytest.mark.parametrize(
    ("texts", "param", "said"),
    [
        (["a", ""], "texts[1]", "at least 1"),
        (["a", []], "texts[1]", "at least 1"),
        (["a", [1, -1]], "texts[1][1]", "greater"),
        (["a", [True]], "texts[1][0]", "integer"),
        (["a", None], "texts[1]", "text or a list"),
        (["a", 3], "texts[1]", "text or a list"),
        (["a\ud800"], "texts[0]", "surrogate"),
    ],
)
def test_the_clients_refuse_what_is_no_text(texts: Any, param: str, said: str) -> None:
    with Client() as client, pytest.raises(InvalidRequestError) as caught:
        client.loglikelihood_rolling(texts)
    assert caught.value.param == param
    assert said in str(caught.value)
    assert param in str(caught.value)


def test_a_lone_text_is_not_taken_for_a_list_of_letters() -> None:
    with Client() as client, pytest.raises(TypeError, match=r"pass \[text\]"):
        client.loglikelihood_rolling("a text")


def test_a_servers_refusal_names_the_callers_text() -> None:
    async def use(app: Running) -> None:
        transport = httpx.ASGITransport(app.app)
        async with AsyncClient(transport=transport, max_items_per_request=1) as client:
            with pytest.raises(BadRequestError) as caught:
                await client.loglikelihood_rolling(["a", "b", "<s>"])
            assert caught.value.param == "texts[2]"

    with_app(use)


def test_an_answer_without_its_one_score_is_none() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        result = {"index": 0, "context_tokens": 1, "truncated_tokens": 0, "scores": []}
        usage = dict.fromkeys(
            ("prompt_tokens", "total_tokens", "computed_tokens", "cached_tokens"), 0
        )
        answer = {"id": "s", "created": 0, "model": "m", "system_fingerprint": "f"}
        return httpx.Response(200, json=answer | {"results": [result], "usage": usage})

    with (
        Client(transport=httpx.MockTransport(handler)) as client,
        pytest.raises(InvalidResponseError) as caught,
    ):
        client.loglikelihood_rolling(["a"])
    assert "1 scores" in str(caught.value.__cause__)


# The default model.

TEXT = (
    "The river rises in the hills, and after forty miles of woods and farms it comes to the sea. "
    "Nobody who lives beside it has ever called it by the name on the maps: to them it is only the "
    "water, high in March, low in August, and never to be trusted by a child after rain. "
)


def test_windows_are_what_they_would_be_as_items(tiny_server: ServerProcess) -> None:
    with Client(tiny_server.url) as client:
        (card,) = client.models().data
        assert card.bos_token_id is not None
        (prefix,) = client.score("", [TEXT], return_tokens=True)
        assert prefix.tokens is not None
        ids = [token.id for token in prefix.tokens]
        assert 3 * 64 < len(ids) < 5 * 64
        for stride, prefix_in in ((64, "first"), (40, "every")):
            windowing = Windowing.of(64, stride, limit=None, prefix_in_every=prefix_in == "every")
            _, windows = windowing.cut(np.array(ids, np.int32), card.bos_token_id, "text")
            assert len(windows) > 3
            items = [
                {"context": w.ids[: w.start].tolist(), "continuation": w.ids[w.start :].tolist()}
                for w in windows
            ]
            apart = client.score_items(items)
            answer = client.score_items(
                [{"text": TEXT}, {"ids": ids}], window=64, stride=stride, prefix_in=prefix_in
            )
            for result in answer.results:
                (score,) = result.scores
                expected = math.fsum(r.scores[0].loglikelihood for r in apart.results)
                assert abs(score.loglikelihood - expected) <= 1e-5 * len(windows)
                # As many as a tokenizer gives: the first token is scored too.
                assert score.num_tokens == len(ids)
                assert score.num_windows == len(windows)


def test_perplexity_is_that_of_the_text_after_its_prefix(server: ServerProcess) -> None:
    with Client(server.url) as client:
        (whole,) = client.score_items([{"text": TEXT}], return_tokens=True).results[0].scores
        (after,) = client.score("", [TEXT], return_tokens=True)
        assert whole.num_windows == 1
        assert whole.tokens is not None
        assert after.tokens is not None
        assert [t.id for t in whole.tokens] == [t.id for t in after.tokens]
        mean = sum(token.logprob for token in after.tokens) / len(after.tokens)
        assert whole.token_perplexity == pytest.approx(math.exp(-mean), rel=1e-5)
        assert 1 < whole.token_perplexity < 100
        assert whole.byte_perplexity == pytest.approx(2**whole.bits_per_byte)
        assert client.loglikelihood_rolling([TEXT]) == [
            pytest.approx(after.loglikelihood, abs=1e-3)
        ]


def test_the_prefix_in_every_window_changes_the_later_ones_only(tiny_server: ServerProcess) -> None:
    async def use() -> None:
        async with AsyncClient(tiny_server.url) as client:
            first, every = [
                (
                    await client.score_items(
                        [{"text": TEXT}], window=64, prefix_in=prefix_in, return_tokens=True
                    )
                )
                .results[0]
                .scores[0]
                .tokens
                or []
                for prefix_in in ("first", "every")
            ]
        assert [t.id for t in first] == [t.id for t in every]
        differences = [abs(a.logprob - b.logprob) for a, b in zip(first, every, strict=True)]
        assert max(differences[:64]) < 1e-4
        assert max(differences[64:128]) > 0.01

    asyncio.run(use())
