"""Messages as a context: through the model's chat template, and no second BOS."""

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fakes import (
    Running,
    with_app,
)
from server_process import ServerProcess
from tiny_tokenizers import BOS, byte_level, sentencepiece
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mlxscore_client import Client, wire
from mlxscore_client.errors import InvalidRequestError
from mlxscore_client.inputs import score_request
from mlxscore_client.split import split
from mlxscore_server.chat import Chat, ChatOptions
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.tokens import Encoder

# Turns end with a line break, as in ChatML.
PLAIN = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ '\\n' }}{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + PLAIN
STRICT = (
    "{% if messages[0]['role'] not in ('user', 'system') %}"
    "{{ raise_exception('a conversation begins with the user') }}{% endif %}"
    "{% for m in messages %}{{ m['content'] + mood }}{% endfor %}"
)

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of France?"},
]
RENDERED = "[system]Be brief.\n[user]Capital of France?\n[assistant]\n"


def error_of(response: httpx.Response) -> wire.ErrorBody:
    assert response.status_code == 400
    assert "Traceback" not in response.text
    return wire.ErrorBody(**response.json()["error"])


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


# --- the template ---


def test_a_conversation_becomes_what_transformers_makes_of_it() -> None:
    tokenizer = byte_level(chat_template=WITH_BOS)
    chat = Chat(tokenizer)
    assert chat.template == WITH_BOS
    assert chat.render(TALK, ChatOptions()) == BOS + RENDERED
    closed = chat.render(TALK, ChatOptions(add_generation_prompt=False))
    assert closed == BOS + RENDERED.removesuffix("[assistant]\n")
    for begin in (True, False):
        assert chat.render(
            TALK, ChatOptions(add_generation_prompt=begin)
        ) == tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=begin)


def test_the_final_message_can_be_left_open() -> None:
    chat = Chat(byte_level(chat_template=PLAIN))
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    talk = [user("Capital of France?"), {"role": "assistant", "content": "It is"}]
    assert chat.render(talk, options) == "[user]Capital of France?\n[assistant]It is"
    with pytest.raises(InvalidRequest, match="not compatible"):
        chat.render(talk, ChatOptions(add_generation_prompt=True, continue_final_message=True))


def test_parts_of_text_are_joined() -> None:
    chat = Chat(byte_level(chat_template=PLAIN))
    parts = [{"type": "text", "text": "Capital "}, {"type": "text", "text": "of France?"}]
    assert chat.render([TALK[0], user(parts)], ChatOptions()) == RENDERED


def test_what_else_a_message_holds_is_for_the_template() -> None:
    chat = Chat(byte_level(chat_template="{% for m in messages %}{{ m['name'] }}{% endfor %}"))
    assert chat.render([user("Hi", name="Ann")], ChatOptions()) == "Ann"
    calls = {"role": "assistant", "content": None, "tool_calls": [{}], "name": "Bob"}
    assert chat.render([calls], ChatOptions()) == "Bob"


def test_variables_reach_the_template_and_content_is_no_template() -> None:
    chat = Chat(byte_level(chat_template=STRICT))
    options = ChatOptions(template_kwargs={"mood": "!"})
    assert chat.render([user("{{ 7 * 7 }}{% for")], options) == "{{ 7 * 7 }}{% for!"


def test_the_default_of_several_templates() -> None:
    named = {"default": PLAIN, "tool_use": "other"}
    assert Chat(byte_level(chat_template=named)).render(TALK, ChatOptions()) == RENDERED
    for none in ({"rag": PLAIN, "tool_use": PLAIN}, None):
        chat = Chat(byte_level(chat_template=none))
        assert chat.template is None
        with pytest.raises(InvalidRequest, match="no chat template") as caught:
            chat.render(TALK, ChatOptions(), "items[2].messages")
        assert caught.value.param == "items[2].messages"


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ([{"role": "tool", "content": "x"}], {"mood": ""}, "a conversation begins with the user"),
        ([user("x")], {}, "'mood' is undefined"),
        ([user("x")], {"mood": 5}, "TypeError"),
        ([{"role": "tool", "content": "x"}], {"raise_exception": 5}, "not callable"),
    ],
)
def test_a_template_that_refuses(messages: Any, options: Any, said: str) -> None:
    async def use(app: Running) -> None:
        item = {"messages": messages, "continuation": "x"}
        for path, body, param in (
            ("/tokenize", {"messages": messages}, "messages"),
            ("/score", {"items": [item]}, "items[0].messages"),
        ):
            response = await app.client.post(path, json=body | {"chat_template_kwargs": options})
            error = error_of(response)
            assert said in error.message
            assert (error.param, error.code) == (param, "invalid_value")

    with_app(use, tokenizer=byte_level(chat_template=STRICT))


def test_a_long_complaint_is_cut() -> None:
    template = "{{ raise_exception(messages[0]['content']) }}"
    with pytest.raises(InvalidRequest) as caught:
        Chat(byte_level(chat_template=template)).render([user("x\n" * 10**5)], ChatOptions())
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "name",
    [
        *("tokenize", "chat_template", "conversation", "return_dict", "tools", "documents"),
        *("add_generation_prompt", "continue_final_message", "padding", "return_tensors"),
        *("messages", "conversations", "self", "tokenizer_kwargs", "sanitize_control_tokens"),
    ],
)
def test_variables_cannot_be_arguments(name: str) -> None:
    async def use(app: Running) -> None:
        item = {"messages": TALK, "continuation": "x"}
        for path, body in (("/tokenize", {"messages": TALK}), ("/score", {"items": [item]})):
            body |= {"chat_template_kwargs": {name: "{{ 1 }}"}}
            error = error_of(await app.client.post(path, json=body))
            assert error.param == f"chat_template_kwargs.{name}"
            assert repr(name) in error.message

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


# --- what is no message ---

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hello", "messages"),
        (user("x"), "messages"),
        (["Hello"], "messages[0]"),
        ([user("x"), [user("y")]], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([user("x"), {"role": 5, "content": "x"}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(None)], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([user(5)], "messages[0].content"),
        ([user({"type": "text", "text": "x"})], "messages[0].content"),
        ([user("x"), user([IMAGE])], "messages[1].content[0].type"),
        ([user([{"text": "x"}])], "messages[0].content[0].type"),
        ([user(["x"])], "messages[0].content[0]"),
        ([user([{"type": "text", "text": "x"}, {"type": "text"}])], "messages[0].content[1].text"),
        ([user([{"type": "text", "text": ["x"]}])], "messages[0].content[0].text"),
    ],
)
def test_a_bad_message_is_named(messages: Any, param: str) -> None:
    async def use(app: Running) -> None:
        error = error_of(await app.client.post("/tokenize", json={"messages": messages}))
        assert error.param == param
        assert param in error.message
        good = {"context": "a", "continuation": "b"}
        items = [good, {"messages": messages, "continuation": "x"}]
        assert error_of(await app.score(items=items)).param == f"items[1].{param}"

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"add_generation_prompt": "yes"}, "add_generation_prompt"),
        ({"add_generation_prompt": None}, "add_generation_prompt"),
        ({"chat_template_kwargs": "mood"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": ["mood"]}, "chat_template_kwargs"),
    ],
)
def test_bad_options(options: Any, param: str) -> None:
    async def use(app: Running) -> None:
        error = error_of(await app.client.post("/tokenize", json={"messages": TALK} | options))
        assert error.param == param
        item = {"messages": TALK, "continuation": "x"}
        assert error_of(await app.score(items=[item], **options)).param == param

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_variables_are_plain_json(number: str) -> None:
    async def use(app: Running) -> None:
        body = '{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"n": %s}}'
        response = await app.client.post("/tokenize", content=body % number)
        assert error_of(response).param == "chat_template_kwargs"

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


# --- as a context ---

KINDS: list[Callable[..., PreTrainedTokenizerFast]] = [byte_level, sentencepiece]


async def row_of(app: Running, item: dict[str, Any], **options: Any) -> tuple[list[int], int]:
    """The ids that an item of one continuation became, and where its continuation begins."""
    response = await app.score(items=[item], **options)
    assert response.status_code == 200, response.text
    row = app.scorer.batches[-1].rows[0]
    return row.ids.tolist(), row.start


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [PLAIN + "|", WITH_BOS + "|"])
@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_messages_are_the_rendered_text_as_a_context(
    kind: Callable[..., PreTrainedTokenizerFast], template: str, boundary: str
) -> None:
    tokenizer = kind(add_bos=True, chat_template=template)
    rendered = Chat(tokenizer).render(TALK, ChatOptions())
    assert rendered == rendered.rstrip()

    async def use(app: Running) -> None:
        for continuation in ("Paris", " true", [5, 6]):
            chat = await row_of(
                app, {"messages": TALK, "continuation": continuation}, boundary=boundary
            )
            text = await row_of(
                app,
                {"context": rendered, "continuation": continuation},
                boundary=boundary,
                add_special_tokens=False,
            )
            assert chat == text

    with_app(use, tokenizer=tokenizer)


def test_the_rendered_text_keeps_its_trailing_whitespace() -> None:
    """A template that ends with a line break ends so: the model was trained to answer after it."""
    tokenizer = byte_level(chat_template=PLAIN)

    async def use(app: Running) -> None:
        context = tokenizer.encode(RENDERED, add_special_tokens=False)
        for label in ("Yes", " Yes", "\nYes"):
            ids, start = await row_of(app, {"messages": TALK, "continuation": label})
            assert ids[:start] == context
            assert ids == tokenizer.encode(RENDERED + label, add_special_tokens=False)
            # As text the line break would be scored too.
            _, moved = await row_of(app, {"context": RENDERED, "continuation": label})
            assert moved == start - 1

    with_app(use, tokenizer=tokenizer)


def test_the_answer_shows_which_label_was_scored() -> None:
    async def use(app: Running) -> None:
        item = {"messages": TALK, "continuations": ["Yes", " Yes"], "id": "q"}
        response = await app.score(items=[item], return_tokens=True)
        (result,) = wire.ScoreResponse.model_validate_json(response.content).results
        assert result.id == "q"
        assert result.context_tokens == len(RENDERED)
        texts = ["".join(t.text for t in score.tokens or []) for score in result.scores]
        assert texts == ["Yes", " Yes"]
        assert [score.num_bytes for score in result.scores] == [3, 4]

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("template", "special", "count"),
    [
        (WITH_BOS, None, 1),
        (WITH_BOS, False, 1),
        (WITH_BOS, True, 1),
        (PLAIN, None, 0),
        (PLAIN, False, 0),
        (PLAIN, True, 1),
    ],
)
def test_one_bos_at_most(
    kind: Callable[..., PreTrainedTokenizerFast], template: str, special: bool | None, count: int
) -> None:
    tokenizer = kind(add_bos=True, chat_template=template)
    bos = tokenizer.convert_tokens_to_ids(BOS)

    async def use(app: Running) -> None:
        options = {} if special is None else {"add_special_tokens": special}
        ids, _ = await row_of(app, {"messages": TALK, "continuation": "x"}, **options)
        assert ids.count(bos) == count
        response = await app.client.post("/tokenize", json={"messages": TALK} | options)
        tokens = response.json()["tokens"]
        assert tokens.count(bos) == count
        assert tokens[:count] == [bos] * count
        # Text: the tokenizer's own way, and never a second one.
        for text in ("Hi", Chat(tokenizer).render(TALK, ChatOptions())):
            response = await app.client.post("/tokenize", json={"prompt": text})
            assert response.json()["tokens"].count(bos) == 1

    with_app(use, tokenizer=tokenizer)


def test_options_reach_the_items() -> None:
    tokenizer = byte_level(chat_template=PLAIN)
    talk = [user("Q"), {"role": "assistant", "content": "It is"}]

    async def use(app: Running) -> None:
        item = {"messages": talk, "continuation": " Paris"}
        ids, start = await row_of(
            app, item, add_generation_prompt=False, continue_final_message=True
        )
        assert tokenizer.decode(ids[:start]) == "[user]Q\n[assistant]It is"
        assert tokenizer.decode(ids[start:]) == " Paris"

    with_app(use, tokenizer=tokenizer)


def test_an_empty_rendering_is_an_empty_context() -> None:
    tokenizer = byte_level(chat_template="{{ '' }}")

    async def use(app: Running) -> None:
        ids, start = await row_of(app, {"messages": TALK, "continuation": "x"})
        assert (tokenizer.decode(ids), start) == (BOS + "x", 1)

    with_app(use, tokenizer=tokenizer)


def test_a_long_conversation_is_cut_or_refused_as_any_context() -> None:
    async def use(app: Running) -> None:
        item = {"messages": [user("x" * 2000)], "continuation": "y"}
        error = error_of(await app.score(items=[item]))
        assert (error.param, error.code) == ("items[0].continuation", "context_length_exceeded")
        response = await app.score(items=[item], truncation="left")
        (result,) = response.json()["results"]
        assert result["truncated_tokens"] == result["context_tokens"] + 1 - 1000

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


def test_an_item_has_one_subject() -> None:
    async def use(app: Running) -> None:
        for item in (
            {"messages": TALK, "context": "a", "continuation": "x"},
            {"messages": TALK},
            {"messages": None, "continuation": "x"},
        ):
            assert error_of(await app.score(items=[item])).param in ("items[0]", "items[0].context")

    with_app(use, tokenizer=byte_level(chat_template=PLAIN))


def test_many_threads_share_one_template() -> None:
    encoder = Encoder(byte_level(chat_template=WITH_BOS), num_embeddings=300, max_model_len=None)
    wrong: list[object] = []

    def ask(i: int) -> None:
        for j in range(50):
            text = encoder.chat.render([user(f"{i} {j}")], ChatOptions())
            (ids,) = encoder.encode_texts([text])
            if text != f"{BOS}[user]{i} {j}\n[assistant]\n" or encoder.decode(ids) != text:
                wrong.append((i, j, text))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- the client ---


def test_the_client_sends_messages_and_options_as_they_are() -> None:
    items: list[dict[str, Any]] = [
        {"messages": TALK, "continuation": "é"},
        {"context": "a", "continuations": ["b"]},
        {
            "messages": [user([{"type": "text", "text": "x"}])],
            "continuations": ["b", [1]],
            "id": "q",
        },
    ]
    options = {
        "add_generation_prompt": False,
        "continue_final_message": True,
        "chat_template_kwargs": {"mood": [1, None]},
    }
    request = score_request(items, options)
    for max_rows in (1, 2, 100):
        sent = [
            wire.ScoreRequest.model_validate_json(body.json)
            for body in split(request, max_rows=max_rows, max_bytes=10**6)
        ]
        assert all(s.model_dump(include=options.keys()) == options for s in sent)
        rows = [
            (item.messages or item.context, continuation, item.id)
            for s in sent
            for item in s.items
            for continuation in item.all_continuations()
        ]
        assert rows == [
            (TALK, "é", None),
            ("a", "b", None),
            (items[2]["messages"], "b", "q"),
            (items[2]["messages"], [1], "q"),
        ]
        assert len(sent) == {1: 4, 2: 2, 100: 1}[max_rows]


def test_options_at_their_default_are_not_sent() -> None:
    request = score_request([{"messages": TALK, "continuation": "x"}], {})
    (body,) = split(request, max_rows=9, max_bytes=10**6)
    assert set(wire.ScoreRequest.model_validate_json(body.json).model_fields_set) == {"items"}


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        ([user("\ud800")], {}, "items[0].messages[0]"),
        ([user("x"), user("x", when=object())], {}, "items[0].messages[1]"),
        ([user("x")], {"chat_template_kwargs": {"n": float("nan")}}, "chat_template_kwargs"),
        ([user("x")], {"continue_final_message": True}, "continue_final_message"),
        ("Hello", {}, "items[0].messages"),
        ([], {}, "items[0].messages"),
    ],
)
def test_what_no_server_takes_is_not_sent(messages: Any, options: Any, param: str) -> None:
    def never(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"sent: {request.url}")

    with Client(transport=httpx.MockTransport(never)) as client:
        with pytest.raises(InvalidRequestError) as caught:
            client.score_items([{"messages": messages, "continuation": "x"}], **options)
        assert caught.value.param == param


# --- the default model, whose template is ChatML ---


def test_the_default_models_conversations(server: ServerProcess, default_model_dir: Any) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(default_model_dir)
    talks: list[list[dict[str, str]]] = [
        TALK,
        [TALK[1]],
        [*TALK, {"role": "assistant", "content": "Paris, 日本é🎉"}],
    ]
    for talk in talks:
        for begin in (True, False):
            response = httpx.post(
                f"{server.url}/tokenize", json={"messages": talk, "add_generation_prompt": begin}
            )
            expected = tokenizer.apply_chat_template(talk, add_generation_prompt=begin)["input_ids"]
            assert response.json()["tokens"] == expected
            text = httpx.post(f"{server.url}/detokenize", json={"tokens": expected}).json()[
                "prompt"
            ]
            assert text == tokenizer.apply_chat_template(
                talk, add_generation_prompt=begin, tokenize=False
            )


def test_the_default_model_answers_in_its_turn(
    server: ServerProcess, default_model_dir: Any
) -> None:
    """Through the client: the same numbers as for the ids that transformers makes."""
    tokenizer: Any = AutoTokenizer.from_pretrained(default_model_dir)
    question = [user("What is the capital of France?")]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    labels = ["The capital of France is Paris", "Bananas are yellow"]
    label_ids = [tokenizer.encode(label, add_special_tokens=False) for label in labels]
    with Client(server.url) as client:
        answer = client.score_items(
            [
                {"messages": question, "continuations": labels},
                {"context": ids, "continuations": label_ids},
            ]
        )
    chat, expected = answer.results
    assert chat.context_tokens == expected.context_tokens == len(ids)
    for one, other in zip(chat.scores, expected.scores, strict=True):
        assert one.num_tokens == other.num_tokens
        assert abs(one.loglikelihood - other.loglikelihood) < 1e-4
    assert chat.scores[0].loglikelihood > chat.scores[1].loglikelihood
