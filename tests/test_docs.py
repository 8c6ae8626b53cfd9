"""Each code block of each page is run and gives what is shown below it, or is listed with a reason."""

import ast
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, cast

import doc_blocks
import pytest
import yaml
from doc_blocks import ALL, ROOT, Block
from server_process import ServerProcess

from mlxscore_client import Client

_INSTALLS = "installs; scripts/test has done it before it runs this"
_STAYS = "starts a server that stays; these tests have one"
_LM_EVAL = "its data set lies on the hub; test_lm_eval.py runs the same with tasks of its own"
_BENCH = "takes too long, and measures an idle machine; test_bench.py runs parts of it"
NOT_RUN = {
    ("README.md", "./scripts/demo"): "installs; and runs these tests",
    ("README.md", "mlxscore rank"): "test_command_line_docs.py runs docs/cli.md",
    ("README.md", "curl -sN"): "a file of your own; docs/stream.md has one",
    ("README.md", ".venv/bin/mlxscore-server "): _STAYS,
    ("README.md", "./scripts/venv server"): "models of the hub, and folders that are not here",
    ("README.md", "python3 -m venv"): "installs; scripts/packaging does the same with a wheel",
    ("CONTRIBUTING.md", "./scripts/demo"): "installs; and runs these tests",
    ("SECURITY.md", "mlxscore-server --api-key-file"): _STAYS + "; test_security.py has keys",
    ("docs/benchmarks.md", "./scripts/bench"): _BENCH,
    ("docs/lm-eval.md", "pip install"): _LM_EVAL,
    ("docs/lm-eval.md", "mlxscore-lm-eval"): _LM_EVAL,
    ("docs/lm-eval.md", "lm_eval"): _LM_EVAL,
    ("docs/observability.md", "pip install"): "needs a collector; test_tracing.py has one",
    ("docs/operations.md", "mlxscore-server"): _STAYS,
    ("docs/operations.md", "scripts/soak"): "takes too long; test_soak.py runs a short one",
    ("docs/tutorial.md", "./scripts/venv"): _INSTALLS,
    ("docs/tutorial.md", ".venv/bin/mlxscore-server"): _STAYS,
}
"""(Page, beginning of a block) and why it is not run."""
SHOWN = {
    ("docs/labels.md", "{instruction}"): "a template; test_rerank.py holds it",
    ("docs/observability.md", "2026-12-02"): "lines of a log; test_logs.py holds their fields",
    ("docs/observability.md", "x-request-id"): "an id and times: other ones each time",
}
"""(Page, beginning of a block) of output that no block above it gives again."""

# How much was computed is for the batch and the caches to say, the fingerprint for the machine.
_VARIES = {"id", "created", "system_fingerprint", "computed_tokens", "cached_tokens"}
TOLERANCE = 2e-3  # nats, or a part of a probability: other kernels
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ADDRESS = re.compile(r"(?:http://)?(?:localhost|127\.0\.0\.1):8000")
_COMMENT = re.compile(r"^(\w\S*.*?)\s+# (\[.*\]|\(.*\))$", re.MULTILINE)


def reason(listed: dict[tuple[str, str], str], block: Block) -> str | None:
    """Why a block is not run, or its output not compared."""
    key = named(listed, block)
    return listed[key] if key else None


def named(listed: dict[tuple[str, str], str], block: Block) -> tuple[str, str] | None:
    fitting = (key for key in listed if key[0] == block.page and block.begins.startswith(key[1]))
    return next(fitting, None)


def answer(block: Block) -> Block | None:
    return next((one for one in ALL if one.answers is block and not one.runs), None)


def place(block: Block) -> str:
    return f"{block.page}:{block.line}"


COMMANDS = [b for b in ALL if b.language == "sh" and not reason(NOT_RUN, b)]
PYTHON = sorted({b.page for b in ALL if b.language == "python"})


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the repository's top, in which blocks may leave files."""
    for name in ("examples", "docs", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_shown(found: Any, wanted: Any, at: str = "the answer") -> None:
    """All that is shown is there; base64 and numbers may differ in their last digits."""
    if isinstance(wanted, dict):
        for name, value in cast(dict[str, Any], wanted).items():
            if name not in _VARIES and not name.endswith("_b64"):
                as_shown(found[name], value, f"{at}.{name}")
    elif isinstance(wanted, list):
        values = cast(list[Any], wanted)
        assert len(found) == len(values), at
        for i, (one, value) in enumerate(zip(found, values, strict=True)):
            as_shown(one, value, f"{at}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=TOLERANCE, abs=1e-9), at
    else:
        assert found == wanted, at


def printed_as_shown(found: str, wanted: str, where: str) -> None:
    """The same text; numbers to a digit."""
    assert _NUMBER.sub("#", found).split() == _NUMBER.sub("#", wanted).split(), where
    numbers = [float(number) for number in _NUMBER.findall(wanted)]
    assert [float(n) for n in _NUMBER.findall(found)] == pytest.approx(
        numbers, rel=3e-3, abs=3e-3
    ), where


def check(block: Block, said: str) -> None:
    """What a block printed is what its page shows below it."""
    shown = answer(block)
    if shown is None or reason(SHOWN, shown):
        return
    if shown.language == "json":
        as_shown(json.loads(said), json.loads(shown.text), place(shown))
    else:
        printed_as_shown(said, shown.text, place(shown))


@pytest.mark.parametrize("block", COMMANDS, ids=place)
def test_commands(block: Block, server: ServerProcess, top: Path) -> None:
    bin_folder = Path(sys.executable).parent
    command = _ADDRESS.sub(server.url, block.text).replace(".venv/bin/", f"{bin_folder}/")
    # An HTTP status that is an error makes curl's exit code one, too.
    (top / ".curlrc").write_text("fail-with-body\n")
    env = os.environ | {
        "CURL_HOME": str(top),
        "MLXSCORE_BASE_URL": server.url,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
    }
    done = subprocess.run(["sh", "-euc", command], capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{place(block)}: {done.stdout}\n{done.stderr}"
    check(block, done.stdout)


@pytest.mark.parametrize("page", PYTHON)
def test_python(
    page: str, server: ServerProcess, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page's blocks follow each other as if pasted."""
    monkeypatch.setenv("MLXSCORE_BASE_URL", server.url)
    names: dict[str, Any] = {}
    for block in (one for one in ALL if one.page == page and one.language == "python"):
        said = io.StringIO()
        with redirect_stdout(said):
            exec(_ADDRESS.sub(server.url, block.text), names)
        check(block, said.getvalue())
        # `expression    # [1, 2]`: what stands in the comment.
        for expression, value in _COMMENT.findall(block.text):
            found = eval(expression, names)
            found = found.tolist() if hasattr(found, "tolist") else found
            assert found == ast.literal_eval(value), f"{place(block)}: {expression}"
    for value in names.values():
        if isinstance(value, Client):
            value.close()


def test_no_block_is_forgotten() -> None:
    """Each is run, is compared with what a run gives, is data that parses, or is listed."""
    for block in ALL:
        if block.runs or reason(SHOWN, block):
            continue
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            assert yaml.safe_load(block.text), place(block)
        else:
            asked = block.answers
            assert asked and not block.language and not reason(NOT_RUN, asked), place(block)


def test_nothing_is_listed_in_vain() -> None:
    for listed in (NOT_RUN, SHOWN):
        assert {named(listed, block) for block in ALL} - {None} == set(listed)
    assert len(COMMANDS) >= 30
    assert len(PYTHON) >= 8


def test_the_tests_that_are_named_are_there() -> None:
    tests = Path(__file__).parent
    found = {
        (file, name)
        for page in doc_blocks.PAGES
        for file, name in re.findall(r"(test_\w+\.py)::(test_\w+)", page.read_text("utf-8"))
    }
    assert len(found) > 40
    for file, name in sorted(found):
        assert f"def {name}(" in (tests / file).read_text("utf-8"), f"{file}::{name}"
