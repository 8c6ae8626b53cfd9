"""The class `mlxscore` as lm_eval calls it, against the real server process around the byte model.

A byte is a token whose logprob is minus its value / 256, so every answer is known in advance.
"""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes import BOOM, BOS, byte_tokenizer, loglikelihood
from server_process import FAKE, ServerProcess
from tiny_tokenizers import byte_level
from tokenizers import processors

pytest.importorskip("lm_eval", reason="lm_eval is not installed (the extra lm-eval)")

from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model

from mlxscore_client import Client, InternalServerError
from mlxscore_client.lm_eval import MlxscoreLM

Make = Callable[..., MlxscoreLM]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The real server around the fake scorer."""
    with ServerProcess("--enable-tokenizer-info-endpoint", command=FAKE) as server:
        yield server.url


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """The class, on the server."""
    with ExitStack() as stack:

        def one(**arguments: Any) -> MlxscoreLM:
            lm = MlxscoreLM(url, **arguments)
            stack.callback(lm.close)
            return lm

        yield one


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """The items of each request."""
    bodies: list[list[dict[str, Any]]] = []
    real = Client.score_items

    def spy(self: Client, items: Any, **options: Any) -> Any:
        bodies.append(items)
        return real(self, items, **options)

    monkeypatch.setattr(Client, "score_items", spy)
    return bodies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The served tokenizer, on this side; with a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return save(tokenizer, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def bos_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that puts BOS before a text, as Llama's and Gemma's do."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return save(tokenizer, tmp_path_factory.mktemp("tokenizer"))


def save(tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(str(folder))
    return folder


def pairs(*arguments: tuple[str, str]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(arguments)]


def documents(*texts: str) -> list[Instance]:
    return [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_the_choices_of_a_question_are_one_item_of_one_request(
    make: Make, sent: list[list[dict[str, Any]]]
) -> None:
    lm = make(batch_size=1, num_concurrent=1)
    asked = [("Q1?", " A"), ("Q1?", " B"), ("Question 2? ", "yes"), ("Question 2? ", "no!")]
    found = lm.loglikelihood(pairs(*asked))
    # Trailing white space of a context is scored with the continuation.
    assert found == [
        (loglikelihood(" A"), False),
        (loglikelihood(" B"), False),
        (loglikelihood(" yes"), False),
        (loglikelihood(" no!"), False),
    ]
    assert sent == [
        [{"context": ids("Question 2?"), "continuations": [ids(" yes"), ids(" no!")]}],
        [{"context": ids("Q1?"), "continuations": [ids(" A"), ids(" B")]}],
    ]


def test_a_request_holds_batch_size_rows_longest_first_and_never_a_part_of_a_question(
    make: Make, sent: list[list[dict[str, Any]]]
) -> None:
    lm = make(batch_size="4", num_concurrent=1)
    many = [("many", f" {i}") for i in range(6)]
    singles = [("x" * n, "y") for n in (1, 2, 3, 40)]
    found = lm.loglikelihood(pairs(*singles[:2], *many, *singles[2:]))
    contexts = [[len(item["context"]) for item in items] for items in sent]
    assert contexts == [[40], [4], [3, 2, 1]]
    assert [len(items[0]["continuations"]) for items in sent] == [1, 6, 1]
    wanted = [k for _, k in (*singles[:2], *many, *singles[2:])]
    assert [ll for ll, _ in found] == [loglikelihood(k) for k in wanted]


def test_auto_is_256_rows_or_max_batch_size(make: Make) -> None:
    assert make(batch_size="auto").batch_size == 256
    assert make(batch_size="auto:4", max_batch_size=64).batch_size == 64
    assert make(batch_size="8", device="mps").batch_size == 8


@pytest.mark.parametrize("local", [False, True], ids=["server's tokenizer", "own"])
def test_without_a_context_the_prefix_token_stands_in_once(
    make: Make, folder: Path, sent: list[list[dict[str, Any]]], local: bool
) -> None:
    tokenizer = str(folder) if local else None
    lm = make(tokenizer=tokenizer, batch_size=8)
    lm.loglikelihood(pairs(("", "abcd"), ("", "<s>abc"), ("  ", "ab")))
    (items,) = sent
    assert items == [
        {"context": [BOS], "continuations": [ids("abcd")]},
        {"context": [BOS], "continuations": [ids("  ab")]},
        {"context": [BOS], "continuations": [ids("abc")]},
    ]
    sent.clear()
    lm = make(tokenizer=tokenizer, custom_prefix_token_id=65)
    lm.loglikelihood(pairs(("", "bcd")))
    lm.loglikelihood_rolling(documents("efg"))
    assert sent == [
        [{"context": [65], "continuations": [ids("bcd")]}],
        [{"context": [65], "continuations": [ids("efg")]}],
    ]


@pytest.mark.parametrize(
    ("add_bos_token", "context"),
    [(None, [BOS, *ids("ab")]), (True, [BOS, *ids("ab")]), (False, ids("ab"))],
)
def test_bos_as_hf_has_it(
    make: Make,
    bos_folder: Path,
    sent: list[list[dict[str, Any]]],
    add_bos_token: bool | None,
    context: list[int],
) -> None:
    lm = make(tokenizer=str(bos_folder), add_bos_token=add_bos_token, batch_size=9)
    # A text that brings its own gets no second one.
    lm.loglikelihood(pairs(("ab", "c"), ("<s>abc", "d"), ("", "abcdefg")))
    assert [item["context"] for item in sent[0]] == [[BOS], [BOS, *ids("abc")], context]
    assert [item["continuations"] for item in sent[0]] == [[ids("abcdefg")], [[100]], [[99]]]


def test_the_left_is_cut_so_that_the_model_reads_max_length_tokens(
    make: Make, sent: list[list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    lm = make(max_length=5)
    with caplog.at_level(logging.WARNING):
        lm.loglikelihood(
            pairs(("abcdef", "xyz"), ("abcdef", "uvw"), ("abcdef", "vwxyz"), ("a", "b"))
        )
    # A row of six: the last is only a target. Siblings that are cut elsewhere stay in the request.
    assert [
        {"context": ids("def"), "continuations": [ids("xyz"), ids("uvw")]},
        {"context": ids("f"), "continuations": [ids("vwxyz")]},
    ] in sent
    assert "3 contexts were cut from the left to max_length 5" in caplog.text


@pytest.mark.parametrize(
    ("context", "continuation", "said"),
    [
        ("a", "six678", "'six678' has 6 tokens after 'a'; from 1 to 5 (max_length)"),
        ("a", "", "'' has no tokens of its own after 'a'"),
    ],
)
def test_a_continuation_that_cannot_be_scored_is_named(
    make: Make, context: str, continuation: str, said: str
) -> None:
    lm = make(max_length=5)
    with pytest.raises(ValueError, match=re.escape(said)):
        lm.loglikelihood(pairs((context, continuation)))


def test_documents_in_one_request_each_in_lm_eval_s_windows(
    make: Make, sent: list[list[dict[str, Any]]]
) -> None:
    lm = make(max_length=4, batch_size=1, num_concurrent=1)
    texts = ["abcdefghij", "", "xyz"]
    found = lm.loglikelihood_rolling(documents(*texts))
    assert found == [loglikelihood("abcdefghij"), 0.0, loglikelihood("xyz")]
    assert sent == [
        [
            {"context": [BOS], "continuations": [ids("abcd")]},
            {"context": ids("d"), "continuations": [ids("efgh")]},
            # The last is as long as the others: more of it is context.
            {"context": ids("fgh"), "continuations": [ids("ij")]},
        ],
        [{"context": [BOS], "continuations": [ids("xyz")]}],
    ]


def test_ids_are_the_same_with_either_tokenizer(
    make: Make, folder: Path, sent: list[list[dict[str, Any]]]
) -> None:
    asked = pairs(
        ("日本 ", "は🙂"), ("a\n", "\tb"), ("<s>x", "y"), ("", "<s>z"), ("e\u0301", "\u00e9")
    )
    for tokenizer in (None, str(folder)):
        make(tokenizer=tokenizer, batch_size=99).loglikelihood(asked)
    assert sent[0] == sent[1]


def test_many_texts_are_encoded_in_blocks(make: Make, folder: Path) -> None:
    lm = make(tokenizer=str(folder), batch_size="auto")
    asked = [("<s>" * (i % 2) + f"{i}", f" {i}") for i in range(600)]
    found = lm.loglikelihood(pairs(*asked))
    assert [ll for ll, _ in found] == [loglikelihood(k) for _, k in asked]


def test_an_interrupted_run_resumes_from_lm_eval_s_cache(
    make: Make, tmp_path: Path, sent: list[list[dict[str, Any]]]
) -> None:
    cached = CachingLM(make(num_concurrent=1), str(tmp_path / "cache.db"))
    good = [("context " + "c" * (9 - i), f"{i}") for i in range(3)]
    broken = pairs(*good[:2], ("a", chr(BOOM)), *good[2:])
    with pytest.raises(InternalServerError):
        cached.loglikelihood(broken)
    with pytest.raises(InternalServerError):
        cached.loglikelihood_rolling(documents("a document", chr(BOOM)))
    done = len(sent)
    assert done == 4 + 2, "longest first, the broken one last"
    assert [ll for ll, _ in cached.loglikelihood(pairs(*good))] == [
        loglikelihood(k) for _, k in good
    ]
    assert cached.loglikelihood_rolling(documents("a document")) == [loglikelihood("a document")]
    assert len(sent) == done, "all from the cache"
    cached.dbdict.close()


def test_the_first_error_ends_the_run(make: Make, sent: list[list[dict[str, Any]]]) -> None:
    lm = make(num_concurrent=1)
    with pytest.raises(InternalServerError):
        lm.loglikelihood(pairs(("longest", chr(BOOM)), *((f"{i}", "x") for i in range(50))))
    assert len(sent) < 51


def test_lm_eval_s_bars(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    lm = make()
    lm.loglikelihood(pairs(("a", "b"), ("a", "c")))
    lm.loglikelihood_rolling(documents("abc"))
    shown = capsys.readouterr().err
    for text in (
        r"Encoding texts: 100%.* 3/3 ",
        r"Tokenizing inputs: 100%.* 2/2 ",
        r"Running loglikelihood requests: 100%.* 2/2 ",
        r"Running loglikelihood_rolling requests: 100%.* 1/1 ",
    ):
        assert re.search(text, shown)
    lm.loglikelihood(pairs(("a", "b")), disable_tqdm=True)
    lm.loglikelihood_rolling(documents("abc"), disable_tqdm=True)
    assert capsys.readouterr().err == ""


def test_chat_templates(make: Make, folder: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}]
    lm = make(tokenizer=str(folder))
    assert lm.apply_chat_template(talk) == "[user] Hi\n[assistant] "
    open_end = [*talk, {"role": "assistant", "content": "Answer:"}]
    assert lm.apply_chat_template(open_end, False) == "[user] Hi\n[assistant] Answer:"
    assert lm.chat_template(True) == TEMPLATE
    assert lm.tokenizer_name == str(folder).replace("/", "__")
    without = make()
    assert without.tokenizer_name == "bytes"
    with pytest.raises(ValueError, match="tokenizer=FOLDER_OR_HUB_ID"):
        without.apply_chat_template(talk)


def test_what_goes_into_the_results_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = make()
    info = lm.get_model_info()
    assert info["system_fingerprint"] == "fp-bytes"
    assert (info["served_model"], info["model_dtype"]) == ("bytes", "float32")
    assert json.loads(json.dumps(info)) == info
    # A replica with other weights or another device.
    real = Client.score_items

    def other(self: Client, items: Any, **options: Any) -> Any:
        return real(self, items, **options).model_copy(update={"system_fingerprint": "fp-2"})

    monkeypatch.setattr(Client, "score_items", other)
    lm.loglikelihood(pairs(("a", "b")))
    assert lm.get_model_info()["system_fingerprint"] == "fp-bytes+fp-2"


def test_it_generates_nothing_and_says_so(make: Make) -> None:
    with pytest.raises(NotImplementedError, match=r"scoring service.*generate_until"):
        make().generate_until([Instance("generate_until", {}, ("a", {}), 0)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "gpt2"}, "serves 'bytes', not model=gpt2"),
        ({"batch_size": 0}, "batch_size=0 is not at least 1"),
        ({"batch_size": "many"}, "many"),
        ({"num_concurrent": 0}, "num_concurrent=0 is not at least 1"),
        ({"max_length": 0}, "max_length=0 is not from 1 to 999"),
        ({"max_length": 1000}, r"takes rows of 1000 tokens \(max_model_len\)"),
    ],
)
def test_arguments_that_make_no_sense(make: Make, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(**arguments)


def test_the_longest_row_that_the_server_takes_is_the_default(make: Make) -> None:
    lm = make()
    assert lm.max_length == 999
    lm.loglikelihood(pairs(("a" * 2000, "b" * 999)))
    lm.loglikelihood_rolling(documents("a" * 2001))


def test_another_model_s_tokenizer_is_refused(make: Make, tmp_path: Path) -> None:
    other = save(byte_level(), tmp_path)
    with pytest.raises(ValueError, match="is not the served model's tokenizer"):
        make(tokenizer=str(other))


def test_it_is_one_more_model_type_of_lm_eval_s(url: str) -> None:
    code = (
        "import mlxscore_client.lm_eval; from lm_eval.api.registry import get_model\n"
        "print(get_model('mlxscore').__name__, get_model('local-completions').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["MlxscoreLM", "LocalCompletionsAPI"]
    text = f"base_url={url},model=bytes,add_bos_token=True,max_length=7"
    lm = get_model("mlxscore").create_from_arg_string(text, {"batch_size": "auto", "device": None})
    assert (lm.max_length, lm.batch_size) == (7, 256)
    lm.close()


def test_local_completions_with_the_server_s_tokenizer(url: str) -> None:
    """lm_eval's remote tokenizer, which it takes by itself where /tokenizer_info is enabled."""
    text = f"base_url={url}/v1/completions,model=bytes"
    lm = get_model("local-completions").create_from_arg_string(text, {"batch_size": 2})
    assert lm.tokenizer_backend == "remote"
    assert (lm.prefix_token_id, lm.tok_encode("<s>é")) == (BOS, [BOS, *ids("é")])
    found = lm.loglikelihood(pairs(("Q1? ", "é"), ("", "🙂"), ("a", "\n")))
    assert found == [(loglikelihood(k), False) for k in (" é", "🙂", "\n")]
    assert lm.loglikelihood_rolling(documents("abc")) == [loglikelihood("abc")]
    lm.tokenizer.session.close()


def test_without_lm_eval_the_command_is_one_line() -> None:
    for missing in ("lm_eval", "tqdm"):
        code = (
            f"import sys; sys.modules[{missing!r}] = None\n"
            "from mlxscore_client.lm_eval_command import main; main()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert f"{missing} is not installed" in line
        assert "pip install 'mlxscore[lm-eval]'" in line


def test_the_command_takes_lm_eval_s_arguments() -> None:
    command = [sys.executable, "-m", "mlxscore_client.lm_eval_command", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--model_args" in done.stdout
    assert "--use_cache" in done.stdout
