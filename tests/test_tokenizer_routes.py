"""`/tokenize`, `/detokenize`, `/tokenizer_info`, `/version`: as vLLM's clients send and read them."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import (
    MAX_MODEL_LEN,
    NAME,
    Running,
    byte_tokenizer,
    error_of,
    with_app,
)
from server_process import ServerProcess
from tiny_tokenizers import BOS, EOS, byte_level, sentencepiece
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from mlxscore_client import wire
from mlxscore_client.version import __version__
from mlxscore_server.app import create_app
from mlxscore_server.engine import Engine
from mlxscore_server.resident import Loaded
from mlxscore_server.settings import Settings
from mlxscore_server.tokens import Encoder

TEXTS = [
    *("The Answer is true", "true", " true", "  two  spaces  ", "don 't , stop .", "\n\ttrue\n"),
    *("日本é🎉", f"{BOS}true", f"a{EOS}true{BOS} true", f"{EOS}", f" {BOS}", "e" * 300),
]


async def tokens_of(app: Running, prompt: str, **options: Any) -> list[int]:
    response = await app.client.post("/tokenize", json={"prompt": prompt} | options)
    assert response.status_code == 200, response.text
    return list(response.json()["tokens"])


async def text_of(app: Running, tokens: list[int]) -> str:
    response = await app.client.post("/detokenize", json={"tokens": tokens})
    assert response.status_code == 200, response.text
    assert set(response.json()) == {"prompt"}
    return str(response.json()["prompt"])


def metaspace(scheme: str, *, add_bos: bool = True) -> PreTrainedTokenizerFast:
    """As SentencePiece, with its space put there by the pre-tokenizer, as newer files have it."""
    tokenizer = sentencepiece(add_bos=add_bos)
    backend = tokenizer.backend_tokenizer
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def no_first_space() -> PreTrainedTokenizerFast:
    """As Gemma: spaces are written with U+2581, and none is put before a text."""
    tokenizer = sentencepiece(add_bos=True)
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes, BOS": lambda: byte_level(add_bos=True),
    "bytes, no BOS": lambda: byte_level(bos=None),
    "sentencepiece, BOS": lambda: sentencepiece(add_bos=True),
    "sentencepiece, no BOS": lambda: sentencepiece(add_bos=False),
    "metaspace, first": lambda: metaspace("first"),
    "metaspace, always": lambda: metaspace("always"),
    "no first space": no_first_space,
}


# --- /tokenize ---


def test_the_whole_answer() -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(
            "/tokenize", json={"prompt": "Hi", "return_token_strs": True, "model": NAME}
        )
        assert response.json() == {
            "count": 2,
            "max_model_len": MAX_MODEL_LEN,
            "tokens": [72, 105],
            "token_strs": ["<0x48>", "<0x69>"],
        }
        for extra in ({}, {"return_token_strs": None, "model": None, "add_special_tokens": None}):
            response = await app.client.post("/tokenize", json={"prompt": "Hi"} | extra)
            assert response.json()["token_strs"] is None
            wire.TokenizeResponse.model_validate_json(response.content)
        wire.DetokenizeResponse.model_validate(
            (await app.client.post("/detokenize", json={"tokens": [72]})).json()
        )

    with_app(use)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_every_route_are_those_of_transformers(kind: str) -> None:
    tokenizer = KINDS[kind]()
    bos = tokenizer.bos_token_id

    async def use(app: Running) -> None:
        for text in TEXTS:
            plain = tokenizer.encode(text, add_special_tokens=False)
            full = tokenizer.encode(text, add_special_tokens=True)
            if bos is not None and full[:2] == [bos, bos]:
                full = full[1:]  # ours are never two
            for special, expected in ((False, plain), (True, full), (None, full)):
                options = {} if special is None else {"add_special_tokens": special}
                assert await tokens_of(app, text, **options) == expected
                response = await app.client.post(
                    "/v1/completions",
                    json={"prompt": text, "echo": True, "return_token_ids": True} | options,
                )
                assert response.json()["choices"][0]["prompt_token_ids"] == expected
                item = {"context": text, "continuation": [60]}
                assert (await app.score(items=[item], **options)).status_code == 200
                assert app.scorer.batches[-1].rows[0].ids.tolist() == [*expected, 60]

    with_app(use, tokenizer=tokenizer)


@pytest.mark.parametrize("add_bos", [True, False])
def test_an_empty_text(add_bos: bool) -> None:
    tokenizer = byte_level(add_bos=add_bos)

    async def use(app: Running) -> None:
        bos = [tokenizer.bos_token_id] * add_bos
        assert await tokens_of(app, "") == bos == tokenizer.encode("")
        assert await tokens_of(app, "", add_special_tokens=False) == []
        assert await text_of(app, []) == ""

    with_app(use, tokenizer=tokenizer)


# --- /detokenize ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_comes_back(kind: str) -> None:
    tokenizer = KINDS[kind]()

    async def use(app: Running) -> None:
        for text in TEXTS:
            tokens = await tokens_of(app, text, add_special_tokens=False)
            shown = await text_of(app, tokens)
            if "metaspace" in kind and text == f" {BOS}":
                continue  # the space is taken for the one that they put before a first word
            if "metaspace" in kind and " true" in text:
                # They read " true" as they read "true", at the start or after a special token.
                assert shown.replace(" ", "") == text.replace(" ", "")
            else:
                assert shown == text
            assert await tokens_of(app, shown, add_special_tokens=False) == tokens
            # With a BOS: the ids come back, which is what a text sent as a prompt must give.
            tokens = await tokens_of(app, text)
            shown = await text_of(app, tokens)
            assert await tokens_of(app, shown, add_special_tokens=False) == tokens
            assert await tokens_of(app, shown) == tokens

    with_app(use, tokenizer=tokenizer)


def test_the_space_before_a_first_word_is_no_part_of_the_text() -> None:
    async def use(app: Running) -> None:
        bos, word = await tokens_of(app, "true")
        assert await text_of(app, [bos, word]) == f"{BOS}true"
        assert await text_of(app, [word]) == "true"
        assert await text_of(app, [word, word]) == "true true"

    with_app(use, tokenizer=sentencepiece(add_bos=True))


def test_added_tokens_are_text_as_they_are_written() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<|née▁|>", special=True), AddedToken("<plain>")])

    async def use(app: Running) -> None:
        text = "a<|née▁|><plain> b"
        assert await text_of(app, await tokens_of(app, text)) == text

    with_app(use, tokenizer=tokenizer)


def test_parts_of_characters_and_ids_without_a_token() -> None:
    tokenizer = byte_level()
    encoder = Encoder(tokenizer, num_embeddings=len(tokenizer) + 8, max_model_len=None)
    (ids,) = encoder.encode_texts(["日H"])
    assert encoder.decode(ids) == "日H"
    assert encoder.decode(np.delete(ids, 2)) == "\N{REPLACEMENT CHARACTER}H"
    # Rows of the embedding that the tokenizer has no token for.
    assert encoder.decode(np.insert(ids, 3, len(tokenizer) + 7)) == "日H"


def test_a_tokenizer_without_rust() -> None:
    class Bounded(ByT5Tokenizer):
        def _convert_id_to_token(self, index: int) -> str | None:
            return None if index >= 384 else super()._convert_id_to_token(index)

    encoder = Encoder(Bounded(), num_embeddings=400, max_model_len=None)
    (ids,) = encoder.encode_texts(["日 é</s>"])
    assert encoder.decode(ids) == "日 é</s>"
    # Rows of the embedding that the tokenizer has no token for.
    assert encoder.decode(np.insert(ids, 3, 399)) == "日 é</s>"
    assert encoder.token_strs(ids)[-1] == "</s>"


# --- what is refused ---

HUGE = 10**30


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/tokenize", {}, None, "exactly one of 'prompt' and 'messages' (got neither)"),
        ("/tokenize", {"prompt": None}, None, "got neither"),
        ("/tokenize", {"prompt": "a", "messages": [{}]}, None, "got both"),
        ("/tokenize", {"prompt": 5}, "prompt", "should be"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "should be"),
        ("/tokenize", {"prompt": [1]}, "prompt", "should be"),
        ("/tokenize", {"prompt": "a", "model": 5}, "model", "should be"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens", "bool"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", "bool"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs", "bool"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template", "not supported"),
        ("/tokenize", {"prompt": "a", "tools": [{}]}, "tools", "not supported"),
        ("/tokenize", {"prompt": "a", "media_io_kwargs": {"x": 1}}, "media_io_kwargs", "not supp"),
        (
            "/tokenize",
            {"prompt": "a", "mm_processor_kwargs": {"x": 1}},
            "mm_processor_kwargs",
            "not",
        ),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}]},
            "messages",
            "no chat template",
        ),
        ("/tokenize", [], None, "must be a JSON object"),
        ("/detokenize", {}, "tokens", "required"),
        ("/detokenize", {"tokens": None}, "tokens", "should be"),
        ("/detokenize", {"tokens": "abc"}, "tokens", "should be"),
        ("/detokenize", {"tokens": 5}, "tokens", "should be"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]", "should be"),
        ("/detokenize", {"tokens": [1, 2.5]}, "tokens[1]", "should be"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]", "should be"),
        ("/detokenize", {"tokens": [[1]]}, "tokens[0]", "should be"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]", "should be"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens[1]", "ids 0 to 256"),
        ("/detokenize", {"tokens": [HUGE]}, "tokens[0]", "should be"),
        ("/detokenize", {"tokens": [1], "model": 5}, "model", "should be"),
    ],
)
def test_a_bad_field_is_named(path: str, body: Any, param: str | None, said: str) -> None:
    async def use(app: Running) -> None:
        response = await app.client.post(path, json=body)
        assert response.status_code == 400
        error = error_of(response)
        assert error.param == param
        assert said in error.message

    with_app(use)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_bodies_are_bounded_json_and_for_this_model(path: str) -> None:
    async def use(app: Running) -> None:
        body = {"prompt": "a", "tokens": [1]}
        response = await app.client.post(path, json=body | {"model": "another"})
        assert (response.status_code, error_of(response).param) == (404, "model")
        response = await app.client.post(path, content=b"{", headers={"content-type": "text/plain"})
        assert response.status_code == 415
        response = await app.client.post(path, content=b"{")
        assert (response.status_code, error_of(response).code) == (400, "invalid_json")
        response = await app.client.post(path, json=body | {"x": "y" * 1000})
        assert response.status_code == 413
        # vLLM's clients send fields that we do not have.
        assert (await app.client.post(path, json=body | {"truncate": 1})).status_code == 200
        assert (await app.client.get(path)).status_code == 405

    with_app(use, max_request_bytes=1000)


# --- under load, and while there is no model ---


def test_tokenizing_does_not_wait_for_the_model() -> None:
    """As lm-evaluation-harness asks: two /tokenize in a row for each pair, while others are scored."""

    async def use(app: Running) -> None:
        held = await app.hold()
        waiting = asyncio.create_task(app.score(items=[{"context": "a", "continuation": "b"}]))
        await app.waiting(1)
        for text in ("Question: true?", "Question: true? yes"):
            assert await tokens_of(app, text, add_special_tokens=False) == list(text.encode())
        assert await text_of(app, [72, 105]) == "Hi"
        assert (await app.client.get("/tokenizer_info")).status_code == 200
        assert (await app.client.get("/version")).status_code == 200
        assert not held.done()
        assert not waiting.done()
        app.scorer.gate.set()
        assert (await held).status_code == (await waiting).status_code == 200

    with_app(use, enable_tokenizer_info_endpoint=True)


def test_short_texts_do_not_wait_for_huge_ones() -> None:
    async def use(app: Running) -> None:
        gate = threading.Event()
        try:
            # All threads that a huge text may take are taken.
            huge = [asyncio.create_task(app.engine.encode(gate.wait)) for _ in range(2)]
            late = asyncio.create_task(tokens_of(app, "x" * 100_000))
            async with asyncio.timeout(60):  # so that it fails rather than hangs
                assert await tokens_of(app, "Hi") == [72, 105]
                assert await text_of(app, [72, 105]) == "Hi"
                assert await tokens_of(app, "x" * 60_000) == [120] * 60_000
            assert not late.done()
        finally:
            gate.set()
        await asyncio.gather(*huge)
        assert len(await late) == 100_000

    with_app(use)


def test_while_the_model_loads() -> None:
    gate = threading.Event()

    def load() -> Loaded:
        gate.wait()
        raise RuntimeError("no model today")

    async def main() -> None:
        settings = Settings(enable_tokenizer_info_endpoint=True)
        engine = Engine(settings, load)
        engine.start()
        transport = httpx.ASGITransport(create_app(engine, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            try:
                for response in (
                    await client.post("/tokenize", content=b"[not even read"),
                    await client.post("/detokenize", content=b"[not even read"),
                    await client.get("/tokenizer_info"),
                ):
                    assert (response.status_code, error_of(response).code) == (503, "loading")
                    assert int(response.headers["retry-after"]) >= 1
                assert (await client.get("/version")).json() == {"version": __version__}
            finally:
                gate.set()
            await engine.close()

    asyncio.run(main())


# --- /tokenizer_info and /version ---


def test_the_tokenizers_configuration_is_opt_in() -> None:
    async def use(app: Running) -> None:
        for response in (await app.client.get("/tokenizer_info"), await app.client.get("/nowhere")):
            assert (response.status_code, error_of(response).code) == (404, "path_not_found")
        schema = (await app.client.get("/openapi.json")).json()
        assert "/tokenizer_info" not in schema["paths"]
        assert {"/tokenize", "/detokenize", "/version"} <= set(schema["paths"])

    with_app(use)

    async def on(app: Running) -> None:
        schema = (await app.client.get("/openapi.json")).json()
        example = schema["paths"]["/tokenizer_info"]["get"]["responses"]["200"]["content"]
        wire.TokenizerInfo.model_validate(example["application/json"]["example"])

    with_app(on, enable_tokenizer_info_endpoint=True)


def info_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    async def use(app: Running) -> None:
        response = await app.client.get("/tokenizer_info")
        assert response.status_code == 200
        found.update(json.loads(response.content, parse_constant=no_constant))
        wire.TokenizerInfo.model_validate(found)

    with_app(use, enable_tokenizer_info_endpoint=True, tokenizer=tokenizer)
    return found


def test_the_tokenizers_configuration() -> None:
    tokenizer = byte_level(
        add_bos=True,
        chat_template={"default": "{{ messages }}", "rag": "no"},
        pad_token=AddedToken("<pad>", special=True),
        odd=float("inf"),
        nested={"tokens": [AddedToken("<x>")], "where": ("a", 1, None, 0.5, object())},
        name_or_path="/home/somebody/model",
        vocab_file="/home/somebody/vocab.json",
        token="secret",
    )
    info = info_of(tokenizer)
    assert info["tokenizer_class"] == type(tokenizer).__name__
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == (BOS, EOS, "<pad>")
    assert info["unk_token"] is None
    assert info["chat_template"] == "{{ messages }}"
    assert info["add_bos_token"] is True
    assert info["model_max_length"] == MAX_MODEL_LEN  # the tokenizer itself states none
    assert info["odd"] is None
    assert info["nested"] == {"tokens": ["<x>"], "where": ["a", 1, None, 0.5, None]}
    assert "somebody" not in json.dumps(info)
    assert "secret" not in json.dumps(info)


def test_what_a_tokenizer_does_not_have_is_null() -> None:
    info = info_of(byte_level(bos=None, eos=None, model_max_length=77))
    assert [info[f"{name}_token"] for name in ("bos", "eos", "pad", "unk")] == [None] * 4
    assert (info["chat_template"], info["add_bos_token"]) == (None, False)
    assert info["model_max_length"] == 77
    assert info_of(byte_tokenizer())["bos_token"] == BOS


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_found_by_their_text(kind: str) -> None:
    """As lm-evaluation-harness does: the first id of the token's text is the token's id."""
    tokenizer = KINDS[kind]()
    info = info_of(tokenizer)

    async def use(app: Running) -> None:
        for name in ("bos_token", "eos_token"):
            if (text := info[name]) is not None:
                first, *rest = await tokens_of(app, text, add_special_tokens=False)
                assert (first, rest) == (tokenizer.convert_tokens_to_ids(text), [])

    with_app(use, tokenizer=tokenizer)


# --- the default model ---


def test_the_default_models_tokenizer(server: ServerProcess, default_model_dir: Any) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(default_model_dir)
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/version").json() == {"version": __version__}
        assert client.get("/tokenizer_info").status_code == 404
        for text in [*TEXTS, "The capital of France is", "<|im_start|>user\nHi<|im_end|>\n"]:
            body = {"prompt": text, "return_token_strs": True}
            answer = wire.TokenizeResponse.model_validate_json(
                client.post("/tokenize", json=body).content
            )
            assert answer.tokens == tokenizer.encode(text)
            assert answer.count == len(answer.tokens)
            assert answer.token_strs == tokenizer.convert_ids_to_tokens(answer.tokens)
            assert answer.max_model_len == 8192
            shown = client.post("/detokenize", json={"tokens": answer.tokens}).json()["prompt"]
            assert shown == text


def test_the_default_models_configuration(default_model_dir: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    info = info_of(tokenizer)
    assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert info["chat_template"].startswith("{% for message in messages %}")
    assert info["model_max_length"] == 8192
    assert str(default_model_dir) not in json.dumps(info)
