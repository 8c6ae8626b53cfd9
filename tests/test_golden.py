"""The default model against transformers in float32: each token, rank and greedy flag.

Alone, in one batch of 40, shuffled, as ids, and over HTTP from the real server process.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import with_engine
from server_process import ServerProcess
from ways import LEFT_PADDED, Way

from mlxscore_client import Client
from mlxscore_client.wire import Score, ScoreItem, ScoreResponse
from mlxscore_server.engine import Engine
from mlxscore_server.model import load
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.scoring import BatchScorer
from mlxscore_server.settings import Settings

TOLERANCE = 5e-5  # nats a token; 1.8e-5 was reached
Golden = dict[str, Any]


def goldens() -> list[Golden]:
    path = Path(__file__).parent / "golden" / "smollm2-135m.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 40
    return lines


def scored() -> list[Golden]:
    """Those whose boundary is not merged: the others have no reference score, their ids are checked
    beside the encoder."""
    return [golden for golden in goldens() if not golden.get("merged")]


def as_row(golden: Golden) -> Row:
    ids = np.array(golden["context_ids"] + golden["continuation_ids"], np.int32)
    return Row(ids, len(golden["context_ids"]), ranks=True)


def assert_row(score: RowScore, golden: Golden) -> None:
    assert np.abs(score.logprobs - golden["token_logprobs"]).max() <= TOLERANCE
    assert score.ranks is not None
    assert score.ranks.tolist() == golden["ranks"]
    assert score.is_greedy == golden["is_greedy"]


@pytest.mark.usefixtures("default_model_dir")
def test_alone_together_and_shuffled() -> None:
    lines = scored()
    rows = [as_row(golden) for golden in lines]

    async def use(engine: Engine) -> None:
        for row, golden in zip(rows, lines, strict=True):
            assert_row((await engine.score([row])).scores[0], golden)
        in_order = list(range(len(rows)))
        for order in (in_order, random.Random(1).sample(in_order, len(rows))):
            found = await engine.score([rows[i] for i in order])
            for score, i in zip(found.scores, order, strict=True):
                assert_row(score, lines[i])

    with_engine(lambda: load(Settings()), use)


WAYS = [
    LEFT_PADDED,
    Way(),
    Way(max_batch_tokens=16, kept_bytes=0),
    Way(max_batch_tokens=16, kept_bytes=2**21),  # a token takes 46 kB
    Way(share=False, kept_bytes=0),
]


@pytest.mark.usefixtures("default_model_dir")
def test_in_every_way() -> None:
    """Both layouts; cold and warm; every prefix in chains over micro-batches, evicted soon; unshared."""
    lines = [golden for golden in scored() if len(golden["context_ids"]) <= 120]
    assert len(lines) > 25
    rows = [as_row(golden) for golden in lines]
    scorers: list[BatchScorer] = []

    def make() -> Loaded:
        loaded = load(Settings())
        assert isinstance(loaded.scorer, BatchScorer)
        scorers.append(loaded.scorer)
        return loaded

    async def use(engine: Engine) -> None:
        for way in WAYS:
            way.set(scorers[0])
            for _ in range(2 if way.kept_bytes else 1):
                found = await engine.score(rows)
                for score, golden in zip(found.scores, lines, strict=True):
                    assert_row(score, golden)

    with_engine(make, use)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def assert_score(score: Score, golden: Golden) -> None:
    assert score.tokens is not None
    assert [token.id for token in score.tokens] == golden["continuation_ids"]
    logprobs = np.array([token.logprob for token in score.tokens])
    assert np.abs(logprobs - golden["token_logprobs"]).max() <= TOLERANCE
    assert [token.rank for token in score.tokens] == golden["ranks"]
    assert score.is_greedy == golden["is_greedy"]
    assert abs(score.loglikelihood - golden["loglikelihood"]) <= TOLERANCE * len(score.tokens)
    text = golden["continuation"]
    assert (score.num_chars, score.num_bytes) == (len(text), len(text.encode()))
    assert not score.merged_boundary


def test_over_http_all_at_once_as_text(client: Client) -> None:
    items = [ScoreItem(context=g["context"], continuation=g["continuation"]) for g in goldens()]
    found = client.score_items(items, return_tokens=True)
    for result, golden in zip(found.results, goldens(), strict=True):
        if golden.get("merged"):
            assert result.scores[0].merged_boundary
            assert result.scores[0].num_tokens >= 1
        else:
            assert result.context_tokens == len(golden["context_ids"])
            assert_score(result.scores[0], golden)


def test_over_http_one_by_one(client: Client) -> None:
    for golden in scored():
        if len(golden["context_ids"]) > 50:
            continue  # the long ones take a CPU long, and are scored together above and below
        (score,) = client.score(golden["context"], [golden["continuation"]], return_tokens=True)
        assert_score(score, golden)


def test_over_http_as_ids_shuffled(client: Client) -> None:
    lines = scored()
    random.Random(3).shuffle(lines)
    items = [ScoreItem(context=g["context_ids"], continuation=g["continuation_ids"]) for g in lines]
    found: ScoreResponse = client.score_items(items, return_tokens=True)
    for result, golden in zip(found.results, lines, strict=True):
        (score,) = result.scores
        # Counted in what the ids decode to, which is what was sent as text where a context was.
        assert score.num_bytes >= 1
        assert score.tokens is not None
        assert [token.id for token in score.tokens] == golden["continuation_ids"]
        logprobs = np.array([token.logprob for token in score.tokens])
        assert np.abs(logprobs - golden["token_logprobs"]).max() <= TOLERANCE
        assert [token.rank for token in score.tokens] == golden["ranks"]


def test_a_texts_tokens_join_to_it(client: Client) -> None:
    for text in (" é", " 👍🏽", " 日本", " ‘x’"):
        (score,) = client.score("He said", [text], top_logprobs=3)
        assert score.tokens is not None
        assert b"".join(bytes(token.bytes) for token in score.tokens) == text.encode()
        for token in score.tokens:
            assert token.text == bytes(token.bytes).decode(errors="replace")
            assert token.top is not None
            assert len({best.id for best in token.top}) == 3
            if token.rank <= 3:
                assert token.top[token.rank - 1].logprob == token.logprob


def test_the_card_says_what_is_served(client: Client) -> None:
    (card,) = client.models().data
    assert card.id == "SmolLM2-135M-Instruct"
    assert (card.max_model_len, card.vocab_size, card.dtype) == (8192, 49152, "float32")
    assert not card.adds_bos
    assert card.self_check.padding == "left-padded"
    assert card.self_check.max_error < TOLERANCE
    assert client.health().status == "ok"
