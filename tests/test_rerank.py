"""Reranking: the question, its template, and the order of the answer."""

import json
import math
import re
from pathlib import Path
from typing import Any

import fakes
import httpx
import numpy as np
import pytest
from fakes import (
    INFINITE,
    MAX_MODEL_LEN,
    NAME,
    ByteScorer,
    Running,
    with_app,
)
from pydantic import ValidationError
from server_process import ServerProcess

from mlxscore_client import wire
from mlxscore_server.cli import main
from mlxscore_server.question import DEFAULT_INSTRUCTION, question_for, read_template
from mlxscore_server.row import Row, RowScore
from mlxscore_server.settings import Settings

PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
TEMPLATE = "Q {query} D {document} A"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The byte model, but sure of its answers in proportion to the `!` that it has read."""

    def row(self: ByteScorer, row: Row) -> RowScore:
        sure = np.count_nonzero(row.ids == ord("!"))
        return RowScore((-row.targets * sure / 256).astype(np.float32), row.targets == 0)

    monkeypatch.setattr(ByteScorer, "_row", row)


def likes(document: str, yes: str = " Yes", no: str = " No") -> float:
    """What `judge` gives a document."""
    sure = document.count("!") / 256
    return 1 / (1 + math.exp(sure * (sum(yes.encode()) - sum(no.encode()))))


def prompts(app: Running) -> list[str]:
    """What the model has been sent, labels and all, sorted."""
    rows = [row for batch in app.scorer.batches for row in batch.rows]
    return sorted({bytes(row.ids.tolist()).decode() for row in rows})


async def ranked(app: Running, **body: Any) -> list[dict[str, Any]]:
    response = await app.client.post("/rerank", json=body)
    assert response.status_code == 200, response.text
    return response.json()["results"]


# --- the answer ---


@pytest.mark.usefixtures("judge")
@pytest.mark.parametrize("path", PATHS)
def test_the_whole_answer(path: str) -> None:
    async def use(app: Running) -> None:
        documents = ["a!!", {"text": "b", "title": "ignored"}, "c!"]
        response = await app.client.post(path, json={"query": "q", "documents": documents})
        assert response.status_code == 200
        answer = response.json()
        assert re.fullmatch(r"rerank-\w+", answer.pop("id"))
        contexts = [len(TEMPLATE.format(query="q", document=d)) for d in ("a!!", "b", "c!")]
        assert answer == {
            "model": NAME,
            "usage": {
                "prompt_tokens": sum(contexts),
                "total_tokens": sum(contexts),
                "completion_tokens": 0,
                # Labels of several tokens are rows of their own: the model reads each but its last.
                "computed_tokens": 2 * sum(contexts) + 3 * (len(" Ye") + len(" N")),
                "cached_tokens": 0,
            },
            "results": [
                {
                    "index": 1,
                    "document": {"text": "b"},
                    "relevance_score": pytest.approx(likes("b")),
                },
                {
                    "index": 2,
                    "document": {"text": "c!"},
                    "relevance_score": pytest.approx(likes("c!")),
                },
                {
                    "index": 0,
                    "document": {"text": "a!!"},
                    "relevance_score": pytest.approx(likes("a!!")),
                },
            ],
        }
        read = wire.RerankResponse.model_validate_json(response.content)
        assert not read.model_extra and not read.results[0].model_extra

    with_app(use, rerank_template=TEMPLATE)


@pytest.mark.usefixtures("judge")
@pytest.mark.parametrize("top_n", [None, 0, 1, 2, 4, 99])
def test_top_n_and_ties(top_n: int | None) -> None:
    async def use(app: Running) -> None:
        documents = ["!", "x", "!", "y"]
        results = await ranked(
            app, query="q", documents=documents, top_n=top_n, return_documents=False
        )
        assert [result["index"] for result in results] == [1, 3, 0, 2][: top_n or None]
        assert all("document" not in result for result in results)

    with_app(use, rerank_template=TEMPLATE)


@pytest.mark.parametrize("asked", [None, True, False])
def test_return_documents(asked: bool | None) -> None:
    async def use(app: Running) -> None:
        given = {} if asked is None else {"return_documents": asked}
        (result,) = await ranked(app, query="q", documents=["é"], **given)
        assert result.get("document") == (None if asked is False else {"text": "é"})

    with_app(use)


@pytest.mark.parametrize("model", [None, "default", NAME])
def test_names_of_the_model(model: str | None) -> None:
    async def use(app: Running) -> None:
        body = {"query": "q", "documents": ["d"], "model": model}
        assert (await app.client.post("/rerank", json=body)).json()["model"] == NAME
        other = await app.client.post("/rerank", json=body | {"model": "other"})
        assert (other.status_code, other.json()["error"]["param"]) == (404, "model")

    with_app(use)


# --- what the model is asked ---


def test_texts_are_data_and_never_a_template() -> None:
    async def use(app: Running) -> None:
        odd = ["{query}", "{document}", "{0} {x!r} {", "%s $query \\1 {{query}}"]
        await ranked(app, query="{document}", documents=odd)
        sent = prompts(app)
        for document in odd:
            asked = f"Q {{document}} D {document} A"
            assert {asked + " Yes", asked + " No"} <= set(sent)
        assert len(sent) == 2 * len(odd)

    with_app(use, rerank_template=TEMPLATE)


@pytest.mark.parametrize(
    ("template", "labels"),
    [
        ("{query} {document}:", (" Yes", " No")),
        ("{query} {document}\n", ("Yes", "No")),
        ("{query} {document} ", ("Yes", "No")),
        ("{query} {document}<|assistant|>", (" Yes", " No")),
    ],
)
def test_one_space_before_the_answer_unless_there_is_one(
    template: str, labels: tuple[str, str]
) -> None:
    async def use(app: Running) -> None:
        await ranked(app, query="q", documents=["d"])
        asked = template.replace("{query}", "q").replace("{document}", "d")
        assert set(prompts(app)) == {asked + label for label in labels}

    with_app(use, rerank_template=template)


def test_the_instruction() -> None:
    async def use(app: Running) -> None:
        await ranked(app, query="q", documents=["d"])
        await ranked(app, query="q", documents=["d"], instruction="find {query}")
        for instruction in (DEFAULT_INSTRUCTION, "find {query}"):
            assert f"{instruction}|q|d? Yes" in prompts(app)

    async def without(app: Running) -> None:
        body = {"query": "q", "documents": ["d"], "instruction": "i"}
        response = await app.client.post("/rerank", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "instruction")

    with_app(use, rerank_template="{instruction}|{query}|{document}?")
    with_app(without, rerank_template=TEMPLATE)


@pytest.mark.parametrize(
    "root",
    [
        "Qwen/Qwen3-Reranker-0.6B",
        "Qwen3-Reranker-4B-mxfp4",
        "qwen3-reranker-8b",
        "my-Qwen3-reranker",
    ],
)
def test_qwen3_reranker_is_asked_as_it_was_trained(root: str) -> None:
    question = question_for(root, None)
    assert (question.yes, question.no) == ("yes", "no")
    assert question.ask("Q {document}", "D", None) == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
        'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer "
        "the query\n<Query>: Q {document}\n<Document>: D<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert "<Instruct>: mine\n" in question.ask("q", "d", "mine")
    # An operator's own template is still answered in the model's words.
    own = question_for(root, TEMPLATE)
    assert (own.template, own.yes, own.no) == (TEMPLATE, " yes", " no")


@pytest.mark.parametrize("root", ["Qwen/Qwen3-0.6B", "Qwen3-Embedding-4B", "bge-reranker-v2", NAME])
def test_any_other_model_is_asked_in_plain_text(root: str) -> None:
    question = question_for(root, None)
    assert (question.yes, question.no) == (" Yes", " No")
    assert "<|" not in question.template
    assert question.ask("the q", "the d", "the i").startswith("the i.\n\nDocument: the d\n")


def test_qwen3_reranker_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "NAME", "Qwen3-Reranker-0.6B")

    async def use(app: Running) -> None:
        await ranked(app, query="q", documents=["d"], instruction="i")
        asked = question_for("Qwen3-Reranker-0.6B", None).ask("q", "d", "i")
        assert set(prompts(app)) == {asked + "yes", asked + "no"}

    with_app(use)


# --- the setting ---


def test_a_template_is_itself_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "template.txt"
    file.write_text(TEMPLATE + "\n", encoding="utf-8")
    assert Settings(rerank_template=TEMPLATE).rerank_template == TEMPLATE
    assert Settings(rerank_template=str(file)).rerank_template == TEMPLATE
    assert Settings().rerank_template is None
    file.write_text(TEMPLATE + "\n\n", encoding="utf-8")
    assert read_template(str(file)) == TEMPLATE + "\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must hold {query} and {document}, or be the path of a text file that does"),
        (b"\xff\xfe{query}{document}", "or be the path of a text file that does"),
        (b"", "must name a file that holds {query} and {document}"),
        (b"{query}", "must name a file that holds {document}"),
        (b"{ query } {document}", "must name a file that holds {query}"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "template.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValidationError) as refused:
        Settings(rerank_template=str(file))
    (found,) = refused.value.errors()
    assert words in found["msg"]


@pytest.mark.parametrize(
    "value", ["just {query}", "{document}?", "{Query} {Document}", "\0", "x" * 5000, "."]
)
def test_a_bad_template_ends_the_start(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rerank-template", value])
    assert ended.value.code == 2
    assert "--rerank-template must hold {query} and {document}, or be" in capsys.readouterr().err


# --- what is refused ---


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"query": None}, "query", "valid string"),
        ({"query": ["q"]}, "query", "valid string"),
        ({"documents": None}, "documents", "valid array"),
        ({"documents": "d"}, "documents", "valid array"),
        ({"documents": []}, "documents", "must not be empty"),
        ({"documents": ["d", 5]}, "documents[1]", "object"),
        ({"documents": ["d", None]}, "documents[1]", "object"),
        ({"documents": ["d", {"title": "x"}]}, "documents[1].text", "is required"),
        ({"documents": ["d", {"text": 5}]}, "documents[1].text", "valid string"),
        ({"documents": ["\ud800"]}, None, "not valid JSON"),
        ({"top_n": -1}, "top_n", "greater than or equal to 0"),
        ({"top_n": 1.5}, "top_n", "valid integer"),
        ({"top_n": True}, "top_n", "valid integer"),
        ({"top_n": "1"}, "top_n", "valid integer"),
        ({"return_documents": "yes"}, "return_documents", "valid boolean"),
        ({"instruction": 5}, "instruction", "valid string"),
        ({"model": 5}, "model", "valid string"),
        ({"truncate_prompt_tokens": 100}, "truncate_prompt_tokens", "not supported"),
        ({"max_tokens_per_doc": 100}, "max_tokens_per_doc", "not supported"),
        ({"raw_scores": True}, "raw_scores", "not supported"),
    ],
)
def test_bad_fields(change: dict[str, Any], param: str | None, words: str) -> None:
    async def use(app: Running) -> None:
        # As ASCII: half of a surrogate pair can be written so.
        content = json.dumps({"query": "q", "documents": ["d"]} | change)
        response = await app.client.post("/rerank", content=content)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert words in error["message"]

    with_app(use)


@pytest.mark.parametrize("name", ["query", "documents"])
def test_fields_that_are_required(name: str) -> None:
    async def use(app: Running) -> None:
        body: dict[str, Any] = {"query": "q", "documents": ["d"]}
        del body[name]
        response = await app.client.post("/rerank", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == f"{name} is required"

    with_app(use)


def test_a_document_that_is_too_long_is_refused_and_never_cut() -> None:
    async def use(app: Running) -> None:
        room = MAX_MODEL_LEN - len(TEMPLATE.format(query="q", document="")) - len(" Yes")
        fits = await ranked(app, query="q", documents=["x" * room])
        assert len(fits) == 1
        body = {"query": "q", "documents": ["d", "x" * (room + 7)]}
        response = await app.client.post("/rerank", json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("documents[1]", "context_length_exceeded")
        for number in (MAX_MODEL_LEN, MAX_MODEL_LEN + 7):
            assert str(number) in error["message"]
        assert "truncation" not in error["message"]

    with_app(use, rerank_template=TEMPLATE)


def test_a_number_that_is_not_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(self: ByteScorer, row: Row) -> RowScore:
        bad = row.targets == (ord("o") if INFINITE in row.ids else -1)
        return RowScore(np.where(bad, -np.inf, -1).astype(np.float32), row.targets == 0)

    monkeypatch.setattr(ByteScorer, "_row", row)

    async def use(app: Running) -> None:
        body = {"query": "q", "documents": ["d", chr(INFINITE)]}
        response = await app.client.post("/rerank", json=body)
        assert response.status_code == 500
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("non_finite_logits", "documents[1]")
        assert len(await ranked(app, query="q", documents=["d"])) == 1

    with_app(use)


# --- the real model ---


def test_the_score_is_p_yes_as_score_has_it(server: ServerProcess) -> None:
    query = "What is the capital of France?"
    documents = ["The capital of Brazil is Brasilia.", "The capital of France is Paris."]
    # As vLLM's documentation has it.
    body = {"model": "default", "query": query, "documents": documents}
    answer = httpx.post(f"{server.url}/rerank", json=body, timeout=120).json()
    assert [result["index"] for result in answer["results"]] == [1, 0]
    assert answer["results"][0]["document"] == {"text": documents[1]}
    question = question_for(answer["model"], None)
    items = [
        {"context": question.ask(query, document, None), "continuations": [" Yes", " No"]}
        for document in documents
    ]
    scored = httpx.post(f"{server.url}/score", json={"items": items}, timeout=120).json()
    for result in answer["results"]:
        yes, no = (s["loglikelihood"] for s in scored["results"][result["index"]]["scores"])
        expected = math.exp(yes) / (math.exp(yes) + math.exp(no))
        assert result["relevance_score"] == pytest.approx(expected, abs=1e-5)
