"""A model whose answers are known: a byte is a token, and its logprob is minus its value / 256.

The tokenizer and the encoder are real, the engine around them too; only the scorer is made up.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from fake_window import Batch, FakeWindow
from fastapi import FastAPI
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mlxscore_client import wire
from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.errors import MlxscoreError, NonFiniteLogits
from mlxscore_server.resident import Loaded
from mlxscore_server.row import Row, RowScore
from mlxscore_server.settings import Settings
from mlxscore_server.stats import Stats
from mlxscore_server.tokens import Encoder

NAME = "bytes"
BOS = 256
VOCAB_SIZE = 257
MAX_MODEL_LEN = 1000
# Bytes that no text of a test holds by chance.
NAN, INFINITE, BOOM, DIE = 0x01, 0x02, 0x03, 0x04


class ByteScorer:
    """Scores rows; the most likely token is always id 0. `hold()` keeps the next micro-batch in it."""

    max_batch_tokens = 4096
    overlaps = False

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.freed = 0
        self.memory_tokens = 10**9
        """More in one micro-batch do not fit."""
        self.stats = Stats()

    def hold(self) -> None:
        self.entered.clear()
        self.gate.clear()

    def plan(self, rows: Sequence[Row]) -> FakeWindow:
        return FakeWindow(rows, self.max_batch_tokens, self.score, self.stats)

    def score(self, batch: Batch) -> list[RowScore | MlxscoreError]:
        self.batches.append(batch)
        self.entered.set()
        self.gate.wait()
        given = {i for row in batch.rows for i in row.targets.tolist()}
        if DIE in given:
            raise SystemExit("more than a micro-batch may raise")
        if batch.computed_tokens > self.memory_tokens:
            raise RuntimeError("[malloc] Unable to allocate 1073741824 bytes.")
        if BOOM in given:
            raise RuntimeError("secret internals")
        return [self._row(row) for row in batch.rows]

    def free(self) -> None:
        self.freed += 1

    def lighten(self, max_batch_tokens: int) -> None:
        self.max_batch_tokens = max_batch_tokens

    def close(self) -> None:
        pass

    def _row(self, row: Row) -> RowScore | MlxscoreError:
        # The model's own first choice (-1) is the most likely token: id 0.
        targets = np.where(row.targets < 0, 0, row.targets).astype(np.int32)
        if NAN in targets:
            return NonFiniteLogits("the model gave NaN")
        logprobs = (-targets / 256).astype(np.float32)
        logprobs[targets == INFINITE] = -np.inf  # a scorer that lets one slip through
        best = np.tile(np.arange(row.top_logprobs, dtype=np.int32), (len(targets), 1))
        return RowScore(
            logprobs,
            targets == 0,
            ranks=targets + 1 if row.ranks else None,
            top_ids=best if row.top_logprobs else None,
            top_logprobs=(-best / 256).astype(np.float32) if row.top_logprobs else None,
            among_logprobs=None if row.among is None else np.full(len(targets), among(row.among)),
            next_id=0 if row.next_token else None,
        )


def among(ids: np.ndarray) -> np.float32:
    """What the byte model says of several tokens together, at any position."""
    return np.float32(np.logaddexp.reduce(-ids / 256))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    # A whole text is one word here: without this the cache of words would keep 10,000 texts.
    model = models.BPE(vocab=vocab, merges=[], byte_fallback=True, cache_capacity=0)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    fast.backend_tokenizer.model = model  # it has taken a copy, with a cache
    return fast


def loaded(scorer: ByteScorer, tokenizer: Any = None) -> Loaded:
    """The byte model, or its scorer behind another tokenizer."""
    chosen = byte_tokenizer() if tokenizer is None else tokenizer
    vocab_size = max(VOCAB_SIZE, len(chosen))
    encoder = Encoder(chosen, num_embeddings=vocab_size, max_model_len=MAX_MODEL_LEN)
    card = wire.ModelCard(
        id=NAME,
        created=1,
        root=NAME,
        max_model_len=MAX_MODEL_LEN,
        dtype="float32",
        head_dtype="float32",
        quantization=None,
        vocab_size=vocab_size,
        adds_bos=encoder.adds_bos,
        bos_token_id=encoder.bos_token_id,
        eos_token_id=encoder.eos_token_id,
        max_logprobs=20,
        system_fingerprint="fp-bytes",
        self_check=wire.SelfCheck(padding="left-padded", max_error=0.0, mean_error=0.0),
    )
    return Loaded(scorer, encoder, card)


@dataclass
class Running:
    """The whole application in this process, asked through ASGI."""

    client: httpx.AsyncClient
    engine: Engine
    scorer: ByteScorer
    app: FastAPI
    settings: Settings

    async def score(self, **body: Any) -> httpx.Response:
        return await self.client.post("/score", json=body)

    async def waiting(self, tokens: int) -> None:
        """Let the loop run until exactly this many tokens wait in the queue."""
        while self.engine.waiting_tokens != tokens:
            await asyncio.sleep(0)

    async def hold(self) -> "asyncio.Task[httpx.Response]":
        """A request that the model has begun with and does not let go of."""
        self.scorer.hold()
        task = asyncio.create_task(self.score(items=[{"context": "x", "continuation": "y"}]))
        await asyncio.to_thread(self.scorer.entered.wait)
        return task


@asynccontextmanager
async def running(*, tokenizer: Any = None, **settings: Any) -> AsyncGenerator[Running]:
    """An application over a real engine, ready to score."""
    scorer = ByteScorer()
    chosen = Settings(**settings)
    engine = Engine(chosen, lambda: loaded(scorer, tokenizer))
    app = create_app(engine, chosen)
    engine.start()
    try:
        await engine.ready()
        # Our own handlers must answer for everything: nothing may reach the transport.
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Running(client, engine, scorer, app, chosen)
    finally:
        scorer.gate.set()
        await engine.close()


def loglikelihood(continuation: str | bytes) -> float:
    data = continuation.encode() if isinstance(continuation, str) else continuation
    return -sum(data) / 256


def with_app(use: Callable[[Running], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with running(**settings) as app:
            await use(app)

    asyncio.run(main())


def error_of(response: httpx.Response) -> wire.ErrorBody:
    """The error of an answer, which must be the envelope and nothing else."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return wire.ErrorBody(**body["error"])
