"""`mlxscore score` and `mlxscore dpo`: files of every kind, good and bad; killed and resumed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_server import HOLD
from fakes import loglikelihood
from server_process import FAKE, ServerProcess
from test_cli import FakeServer, fake_server

pytest.importorskip("typer", reason="typer is not installed (the extra cli)")

from mlxscore_cli import batches, command, lines, score
from mlxscore_client import Client

# Not this machine's own settings.
ENV = {key: value for key, value in os.environ.items() if not key.startswith("MLXSCORE_")}


class Done(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerProcess(command=FAKE) as server:
        yield server.url


@pytest.fixture
def run(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Iterator[Run]:
    """Run a command in this process and a folder of its own."""
    monkeypatch.setenv("MLXSCORE_BASE_URL", url)
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def one(*argv: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            command.main(argv)
        return Done(int(ended.value.code or 0), *capfd.readouterr())

    yield one
    signal.signal(signal.SIGTERM, handler)


def of(name: str) -> list[Any]:
    """A file's lines; none where there is no file."""
    file = Path(name)
    return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def errors(name: str) -> list[tuple[int, int, str | None, str]]:
    return [(e["index"], e["line"], e["id"], e["error"]) for e in of(f"{name}.errors.jsonl")]


def test_each_line_is_an_item_and_its_result_what_the_client_has(run: Run, url: str) -> None:
    items: list[Any] = [
        {"context": "a", "continuation": " b", "id": "x"},
        {"context": "a", "continuations": [" b", " café"]},
        {"text": "hello", "id": "y"},
        {"ids": [97, 98]},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    done = run("score", "in.jsonl", "--out", "out.jsonl", "--top-logprobs", "2")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("4 scored to out.jsonl; ")
    with Client(url) as client:
        wanted = client.score_items(items, top_logprobs=2).results
    found = of("out.jsonl")
    assert [one["index"] for one in found] == [0, 1, 2, 3]
    assert [one["id"] for one in found] == ["x", None, "y", None]
    for one, result in zip(found, wanted, strict=True):
        assert one["context_tokens"] == result.context_tokens
        assert one["scores"] == [
            score.model_dump(mode="json", exclude_unset=True) for score in result.scores
        ]
    assert not Path("out.jsonl.errors.jsonl").exists()
    again = run("score", "in.jsonl", "--out", "out.jsonl", "--overwrite", "--json")
    summary = json.loads(again.out)
    assert summary.pop("seconds") > 0
    assert summary == {
        "scored": 4,
        "failed": 0,
        "resumed": 0,
        "out": "out.jsonl",
        "errors": None,
    }
    assert "tokens" not in of("out.jsonl")[0]["scores"][0]


def test_a_bad_line_has_its_number_and_ends_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20_000)
    rows: list[tuple[bytes, str | None]] = [
        (b'\xef\xbb\xbf{"text": "a", "id": "with a mark before it"}\r\n', None),
        (b"\r\n", None),
        (b'{"context": "a"}\n', "give exactly one of 'continuation' and 'continuations'"),
        (b"  \t\n", None),
        (b"[1]\n", "must be a JSON object, not '[1]'"),
        (b"null\n", "must be a JSON object, not 'null'"),
        (b'{"text": "caf\xe9"}\n', "is not UTF-8 (byte 0xe9 at place 14)"),
        (b'{"text": "a", "bogus": 1}\n', "unknown field 'bogus'"),
        (b'{"text": "a"\n', "is not JSON: "),
        (b'{"text": ""}\n', "text"),
        (b'{"text": "a", "id": 7}\n', "id: "),
        (b'{"text": "\\ud800"}\n', "lone surrogate"),
        (b'{"text": "a' + b"a" * 30_000 + b'"}\n', "is longer than"),
        (b'{"text": "b", "id": "between"}\n', None),
        (b'{"text": "a\\u0001", "id": "nan"}\n', ""),  # of which the byte model says NaN
        (b'{"context": ' + b"[" * 15_000 + b"\n", "is not JSON"),
        (b'{"text": "c", "id": "last"}', None),  # without a line break
    ]
    Path("in.jsonl").write_bytes(b"".join(data for data, _ in rows))
    done = run("score", "in.jsonl", "--out", "out.jsonl")
    assert done.code == 1
    assert done.err == ""
    assert done.out.splitlines()[1] == "12 failed: out.jsonl.errors.jsonl says why"
    found = of("out.jsonl")
    assert [one["id"] for one in found] == ["with a mark before it", "between", "last"]
    texts = "abc"
    for one, text in zip(found, texts, strict=True):
        assert one["scores"][0]["loglikelihood"] == loglikelihood(text)
    # Empty lines have a number, and no index.
    places = [i for i, (data, _) in enumerate(rows) if data.strip()]
    wanted = [(n, i + 1, rows[i][1]) for n, i in enumerate(places) if rows[i][1] is not None]
    for (index, line, _, error), (n, number, said) in zip(errors("out.jsonl"), wanted, strict=True):
        assert (index, line) == (n, number)
        assert said is not None
        assert said in error
        assert "items[" not in error
    assert [one["index"] for one in found] == [0, places.index(13), places.index(16)]


CSV = (
    b"\xef\xbb\xbfid,question,answer,other answer\r\n"
    b'1,"a ""q"", b"," c\nd", e\r\n'
    b"2,a\r\n"
    b"\r\n"
    b"3,a,b,c,d\r\n"
    b"4,caf\xe9,x,y\r\n"
    b"5,a,, b\r\n"
    b"6,a, b, c"
)


def test_csv(run: Run) -> None:
    Path("in.csv").write_bytes(CSV)
    columns = ["--context-column", "question", "--continuation-column", "answer"]
    done = run("score", "in.csv", "--out", "out.jsonl", *columns)
    assert done.code == 1
    assert [(one["index"], one["id"]) for one in of("out.jsonl")] == [(0, "1"), (5, "6")]
    scores = [one["scores"][0]["loglikelihood"] for one in of("out.jsonl")]
    assert scores == [loglikelihood(" c\nd"), loglikelihood(" b")]
    wanted = [
        (1, 4, "2", "column 'answer' is missing: 2 cells, not 4"),
        (2, 6, "3", "has 5 cells, and the header 4: is one not quoted?"),
        (3, 7, "4", "column 'question' is not UTF-8 (byte 0xe9)"),
        (4, 8, "5", "continuation is empty: there is nothing to score"),
    ]
    assert errors("out.jsonl") == wanted
    both = [*columns, "--continuation-column", "other answer", "--overwrite"]
    assert run("score", "in.csv", "--out", "out.jsonl", *both).code == 1
    assert [len(one["scores"]) for one in of("out.jsonl")] == [2, 2]
    text = ["--text-column", "answer", "--id-column", "none", "--overwrite"]
    assert run("score", "in.csv", "--out", "out.jsonl", *text).code == 1
    assert of("out.jsonl")[0]["id"] is None
    assert of("out.jsonl")[0]["scores"][0]["num_words"] == 3


def test_tsv_and_what_the_header_lacks(run: Run) -> None:
    Path("in.tsv").write_text('context\tcontinuation\n"a"\t b\n')
    assert run("score", "in.tsv", "--out", "out.jsonl").code == 0
    assert of("out.jsonl")[0]["scores"][0]["loglikelihood"] == loglikelihood(" b")
    done = run("score", "in.tsv", "--out", "other.jsonl", "--text-column", "sentence")
    assert done.code == 2
    assert done.err == (
        "mlxscore: error: in.tsv, line 1: there is no column 'sentence' (--text-column); "
        "there are: 'context', 'continuation'\n"
    )
    assert not Path("other.jsonl").exists()
    Path("empty.csv").write_bytes(b"")
    assert "there are: none" in run("score", "empty.csv", "--out", "other.jsonl").err


def test_a_cell_that_never_ends_is_an_error_of_its_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxscore_cli import columns

    monkeypatch.setattr(columns, "MAX_LINE_BYTES", 100)
    rest = b"".join(b"a, b\n" for _ in range(50))
    Path("in.csv").write_bytes(b'context,continuation\na, b\n"a,b\n' + rest)
    done = run("score", "in.csv", "--out", "out.jsonl")
    assert done.code == 1
    (first, *_) = errors("out.jsonl")
    assert first[0] == 1
    assert "field larger than field limit" in first[3]
    assert len(of("out.jsonl")) > 1


def test_standard_input(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "mlxscore_cli", "score", "-", "--format", "csv", "--out", str(out)],
        input=b"context,continuation\na, b\n",
        capture_output=True,
        env=ENV | {"MLXSCORE_BASE_URL": url},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert of(str(out))[0]["scores"][0]["loglikelihood"] == loglikelihood(" b")


def test_an_empty_file_is_no_error(run: Run) -> None:
    Path("in.jsonl").write_bytes(b"\n\n")
    done = run("score", "in.jsonl", "--out", "out.jsonl")
    assert (done.code, of("out.jsonl")) == (0, [])
    assert done.out.startswith("0 scored")


def test_after_many_bad_lines_another_stream_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "_MAX_WAITING", 3)
    rows = [f'{{"text": "{i}"}}' if i in (2, 3, 11, 17) else "bad" for i in range(20)]
    Path("in.jsonl").write_text("\n".join(rows))
    assert run("score", "in.jsonl", "--out", "out.jsonl").code == 1
    assert [one["index"] for one in of("out.jsonl")] == [2, 3, 11, 17]
    others = [i for i in range(20) if i not in (2, 3, 11, 17)]
    assert [one[0] for one in errors("out.jsonl")] == others


def test_what_is_there_is_neither_lost_nor_mixed(run: Run) -> None:
    Path("in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    Path("out.jsonl").write_text("mine\n")
    done = run("score", "in.jsonl", "--out", "out.jsonl")
    assert done.code == 2
    assert "out.jsonl exists: --resume goes on with it, --overwrite begins anew" in done.err
    done = run("score", "in.jsonl", "--out", "out.jsonl", "--resume")
    assert done.code == 2
    assert "there is no out.jsonl.run.json" in done.err
    assert Path("out.jsonl").read_text() == "mine\n"
    assert (
        "give one of them"
        in run("score", "in.jsonl", "--out", "out.jsonl", "--resume", "--overwrite").err
    )

    assert run("score", "in.jsonl", "--out", "out.jsonl", "--overwrite").code == 0
    kept = Path("out.jsonl").read_bytes()
    other = run("score", "in.jsonl", "--out", "out.jsonl", "--resume", "--return-tokens")
    assert other.code == 2
    assert "out.jsonl was made with another options (" in other.err
    done = run("score", "in.jsonl", "--out", "out.jsonl", "--resume", "--json")
    assert (done.code, json.loads(done.out)["resumed"]) == (0, 2)
    Path("in.jsonl").write_text('{"text": "a"}\n{"text": "c"}\n')
    changed = run("score", "in.jsonl", "--out", "out.jsonl", "--resume")
    assert changed.code == 2
    assert "input" in changed.err
    Path("out.jsonl.run.json").write_text("{")
    assert "is damaged" in run("score", "in.jsonl", "--out", "out.jsonl", "--resume").err
    assert Path("out.jsonl").read_bytes() == kept
    # With nothing to go on with, it begins: a script may always say --resume.
    assert run("score", "in.jsonl", "--out", "new.jsonl", "--resume").code == 0


HOLDS = (1300, 2700)
"""Items that the model does not let go of. Further on than a stream asks for ahead of what it has been
given: when one is reached, something has been written."""
LINES, BAD = 3200, 100


def write_held_input(path: Path) -> None:
    with path.open("w") as file:
        for i in range(LINES):
            if i % BAD == 7:
                file.write("no item\n")
                continue
            end = chr(HOLD) if i in HOLDS else str(i % 10)
            item = {"context": "a", "continuation": f" {i}{end}", "id": f"q{i}"}
            file.write(json.dumps(item) + "\n")


def start(server_url: str, path: Path, out: Path, *flags: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "mlxscore_cli", "score", str(path), "--out", str(out), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENV | {"MLXSCORE_BASE_URL": server_url},
    )


def let_go_each(server: FakeServer, times: int) -> None:
    for _ in range(times):
        server.until("held")
        server.let_go()


def test_killed_and_resumed_it_gives_the_same_files(tmp_path: Path) -> None:
    path, whole, out = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    beside = Path(f"{out}.errors.jsonl")
    write_held_input(path)
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")
        with start(url, path, whole) as done:
            let_go_each(server, len(HOLDS))
            assert done.wait(timeout=60) == 1  # a few lines are no items

        before = 0
        for held in range(len(HOLDS)):
            with start(url, path, out, "--resume") as killed:
                let_go_each(server, held)
                server.until("held")
                if not held:
                    second = start(url, path, out, "--resume")
                    _, said = second.communicate(timeout=60)
                    assert second.returncode == 2
                    assert b"another run is writing to" in said
                killed.send_signal(signal.SIGKILL)
                killed.wait()
            server.let_go()
            assert before < count(out) + count(beside) <= HOLDS[held]
            before = count(out) + count(beside)
            assert whole.read_bytes().startswith(out.read_bytes())
            # As if it had died in the midst of a line.
            for file in (out, beside):
                with file.open("ab") as torn:
                    torn.write(b'{"index":')
        with start(url, path, out, "--resume", "--json") as last:
            let_go_each(server, 1)
            assert last.wait(timeout=60) == 1
            assert last.stdout is not None
            summary = json.loads(last.stdout.read())
    bad = LINES // BAD
    assert (summary["resumed"], summary["scored"]) == (before, LINES - bad)
    assert summary["failed"] == bad
    for suffix in ("", ".errors.jsonl", ".run.json"):
        assert Path(f"{out}{suffix}").read_bytes() == Path(f"{whole}{suffix}").read_bytes()
    ids = [one["id"] for one in of(str(out))]
    assert len(set(ids)) == len(ids) == LINES - bad


def count(path: Path) -> int:
    """Whole lines."""
    return path.read_bytes().count(b"\n")


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_held_input(path)
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")
        for sign in (signal.SIGINT, signal.SIGTERM):
            with start(url, path, out, "--overwrite") as process:
                server.until("held")
                process.send_signal(sign)
                assert process.wait(timeout=60) == 128 + sign
                assert process.stderr is not None
                (line,) = process.stderr.read().decode().splitlines()
            assert line.startswith("mlxscore: error: stopped after ")
            assert line.endswith("the same with --resume goes on")
            server.let_go()


def test_parquet_holds_what_jsonl_does(run: Run) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    rows = ['{"text": "ab", "id": "x"}', "bad", '{"context": "a", "continuations": [" b", " c"]}']
    Path("in.jsonl").write_text("\n".join(rows))
    assert run("score", "in.jsonl", "--out", "out.jsonl", "--top-logprobs", "1").code == 1
    assert run("score", "in.jsonl", "--out", "out.parquet", "--top-logprobs", "1").code == 1

    def without_null(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_null(v) for k, v in value.items() if v is not None}
        return [without_null(v) for v in value] if isinstance(value, list) else value

    found = parquet.read_table("out.parquet").to_pylist()
    assert without_null(found) == without_null(of("out.jsonl"))
    assert sorted(path.name for path in Path.cwd().glob("out.parquet*")) == [
        "out.parquet",
        "out.parquet.errors.jsonl",
        "out.parquet.run.json",
    ]
    again = run("score", "in.jsonl", "--out", "out.parquet", "--top-logprobs", "1", "--resume")
    assert again.code == 2
    assert "out.parquet is finished" in again.err


def test_parquet_without_pyarrow_is_said_before_anything_is_scored(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    Path("in.jsonl").write_text('{"text": "a"}\n')
    done = run("score", "in.jsonl", "--out", "out.parquet")
    assert done.code == 2
    assert "pip install pyarrow" in done.err
    assert [path.name for path in Path.cwd().iterdir()] == ["in.jsonl"]


def write_pairs(name: str, pairs: Sequence[Any]) -> None:
    rows = [pair if isinstance(pair, str) else json.dumps(pair) for pair in pairs]
    Path(name).write_text("".join(row + "\n" for row in rows))


def test_dpo(run: Run) -> None:
    talk = [{"role": "user", "content": "a"}]
    good = {"prompt": "ab", "chosen": " c", "rejected": " dd", "mine": {"kept": "é"}}
    pairs: list[Any] = [
        good,
        "[]",
        {"prompt": "ab", "chosen": " c"},
        {"chosen": talk, "rejected": talk},
        {"prompt": "ab", "chosen": talk, "rejected": " d"},
        {"prompt": talk, "chosen": talk, "rejected": talk},  # the byte model has no chat template
        {"prompt": [97], "chosen": [98], "rejected": [99, 99]},
        {"prompt": "ab", "chosen": "c\x01", "rejected": "d"},  # NaN
    ]
    write_pairs("pairs.jsonl", pairs)
    done = run("dpo", "pairs.jsonl", "--out", "out.jsonl")
    assert (done.code, done.err) == (1, "")
    first, second = of("out.jsonl")
    assert first == good | {
        "ref_chosen_logps": loglikelihood(" c"),
        "ref_rejected_logps": loglikelihood(" dd"),
    }
    assert second["ref_rejected_logps"] == loglikelihood("cc")
    found = errors("out.jsonl")
    assert [one[1] for one in found] == [2, 3, 4, 5, 6, 8]
    wanted = ["must be a JSON object", "rejected: is missing", "TRL's extract_prompt"]
    wanted += ["chosen: must be text, as the prompt is", "template", ""]
    for (_, _, _, error), said in zip(found, wanted, strict=True):
        assert said in error
        assert "[0]" not in error
    again = run("dpo", "pairs.jsonl", "--out", "out.jsonl", "--resume", "--json")
    assert json.loads(again.out)["resumed"] == 8
    cut = ["--max-length", "3", "--overwrite"]  # two of the prompt, one of the completion
    write_pairs("pairs.jsonl", [good])
    assert run("dpo", "pairs.jsonl", "--out", "out.jsonl", *cut).code == 0
    assert of("out.jsonl")[0]["ref_rejected_logps"] == loglikelihood(" ")
    end = [*cut, "--truncation-mode", "keep_end"]
    assert run("dpo", "pairs.jsonl", "--out", "out.jsonl", *end).code == 0
    # A row's first token is never scored.
    assert of("out.jsonl")[0]["ref_rejected_logps"] == loglikelihood("dd")


def test_dpo_of_a_conversation_is_the_clients(server: ServerProcess, run: Run) -> None:
    pair: dict[str, Any] = {
        "prompt": [{"role": "user", "content": "What is 2 + 2?"}],
        "chosen": [{"role": "assistant", "content": "4"}],
        "rejected": [{"role": "assistant", "content": "A fish"}],
    }
    write_pairs("pairs.jsonl", [pair])
    assert run("dpo", "pairs.jsonl", "--out", "out.jsonl", "--url", server.url).code == 0
    with Client(server.url) as client:
        wanted = client.dpo_logps(pair["prompt"], pair["chosen"], pair["rejected"])
    (found,) = of("out.jsonl")
    assert found["ref_chosen_logps"] == pytest.approx(wanted.ref_chosen_logps, abs=1e-4)
    assert found["ref_rejected_logps"] == pytest.approx(wanted.ref_rejected_logps, abs=1e-4)


def test_a_server_that_fails_is_no_fault_of_a_line() -> None:
    from mlxscore_cli.records import Record
    from mlxscore_client import (
        BadRequestError,
        InternalServerError,
        MlxscoreError,
        RateLimitError,
        ServerUnavailableError,
    )

    records = [Record(i, i + 1, 0, {}) for i in range(5)]
    bad = {2}

    def call(error: MlxscoreError) -> list[Any]:
        def one(batch: Sequence[Record]) -> list[dict[str, Any]]:
            if any(record.index in bad for record in batch):
                raise error
            return [{"ok": record.index} for record in batch]

        return list(batches.in_batches(iter(records), one, 4))

    for error in (BadRequestError("no"), InternalServerError("no", status=500, code="nan")):
        outcomes = [outcome for _, outcome in call(error)]
        assert outcomes == [{"ok": 0}, {"ok": 1}, "no", {"ok": 3}, {"ok": 4}]
    for error in (
        InternalServerError("no", status=502),
        RateLimitError("no"),
        ServerUnavailableError("no"),
    ):
        with pytest.raises(type(error)):
            call(error)
