"""lm_eval itself, unchanged, against the real server process with the default model.

Its tasks and data lie in tests/lm_eval_tasks. Each request's answer is compared with what lm_eval's `hf`
model type got from transformers in float32 (golden/lm_eval_requests.py), and of each task's first
documents with the model's own `__call__`, one row at a time. What each model type of lm_eval cannot do
is said where it is left out.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import ServerProcess

from mlxscore_client import Client

pytest.importorskip("lm_eval", reason="lm_eval is not installed (the extra lm-eval)")

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MODEL = "SmolLM2-135M-Instruct"
TOLERANCE = 1e-3  # nats a request, of up to 80 tokens; 3e-4 was reached
SHORT_LENGTH = 16
"""Contexts are cut, documents take several windows."""
OWN_DOCUMENTS = 1
"""Of each task, through the model's own call: those of all the small runs."""


def tasks(*names: str) -> list[str]:
    return [f"mlxscore_{name}" for name in names]


ALL = tasks("letters", "choices", "lastword", "pairs", "rolling", "edges")
CUT = tasks("choices", "lastword", "rolling", "edges")
"""Those with something longer than SHORT_LENGTH, and one without."""
SMALL = tasks("letters", "lastword", "rolling", "edges")

Key = tuple[str, int, int]
"""Task, document, request."""
Run = dict[str, Any]


def combinations() -> dict[str, dict[str, Any]]:
    """The small runs: each model type with what it lets one choose."""
    found: dict[str, dict[str, Any]] = {}
    for batch_size, num_concurrent in product((1, 8), (1, 8)):
        options = {"batch_size": batch_size, "model_args": {"num_concurrent": num_concurrent}}
        how = f"batch {batch_size}, {num_concurrent} concurrent"
        found[f"mlxscore, {how}"] = {"model": "mlxscore", **options}
        # It sends nothing but ids.
        found[f"sglang-generate, {how}"] = {"model": "sglang-generate", **options}
        for tokenized in (True, False):
            arguments = {"num_concurrent": num_concurrent, "tokenized_requests": tokenized}
            found[f"local-completions, {how}, {'ids' if tokenized else 'text'}"] = {
                "model": "local-completions",
                "batch_size": batch_size,
                "model_args": arguments,
            }
    return found


def all_runs(url: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Name to options of lm_eval's `simple_evaluate`."""
    runs: dict[str, dict[str, Any]] = {
        "mlxscore": {"model": "mlxscore", "batch_size": "auto"},
        # Without a tokenizer on this side.
        "mlxscore, short": {
            "model": "mlxscore",
            "batch_size": 8,
            "model_args": {"max_length": SHORT_LENGTH, "tokenizer": None},
            "tasks": CUT,
        },
        "local-completions": {
            "model": "local-completions",
            "batch_size": 8,
            "model_args": {"num_concurrent": 8},
            # The others follow in the small runs.
            "tasks": tasks("choices", "pairs", "edges"),
        },
        # A token for what is generated, and one that `hf` lets the last target have beyond the window.
        "local-completions, short": {
            "model": "local-completions",
            "batch_size": 8,
            "model_args": {"max_length": SHORT_LENGTH + 2},
            "tasks": tasks("lastword", "rolling", "edges"),
        },
        # It gives up at an empty context ("choices" asks without one too, for acc_mutual_info), at
        # documents, and takes tokens for their texts, which parts of characters ("edges") have not.
        "gguf": {"model": "gguf", "tasks": tasks("letters", "lastword"), "limit": 2},
        "mlxscore, chat": {"model": "mlxscore", "apply_chat_template": True},
        "local-completions, chat": {"model": "local-completions", "apply_chat_template": True},
    }
    for name in ("mlxscore, chat", "local-completions, chat"):
        runs[name] |= {"tasks": tasks("lastword"), "limit": 1}
    small = {"tasks": SMALL, "limit": 1}
    runs |= {name: small | options for name, options in combinations().items()}
    paths = {"local-completions": "/v1/completions", "sglang-generate": "/generate"}
    for options in runs.values():
        kind = options["model"]
        arguments: dict[str, Any] = {"base_url": url + paths.get(kind, "")}
        if kind != "gguf":
            arguments |= {"model": MODEL, "tokenizer": str(folder)}
        options["model_args"] = arguments | options.get("model_args", {})
        options.setdefault("tasks", ALL)
    return runs


ENV = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture(scope="module")
def runs(
    server: ServerProcess, default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """What lm_eval made of all runs, in one process."""
    folder = tmp_path_factory.mktemp("lm_eval")
    output = folder / "output.json"
    done = subprocess.run(
        [sys.executable, str(TESTS / "lm_eval_run.py"), str(output)],
        input=json.dumps(all_runs(server.url, default_model_dir)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | ENV | {"HF_DATASETS_CACHE": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(output.read_text(encoding="utf-8"))


def golden(kind: str, max_length: int | None) -> list[dict[str, Any]]:
    lines = (TESTS / "golden" / "lm_eval_requests.jsonl").read_text("utf-8").splitlines()
    return [
        line
        for line in map(json.loads, lines)
        if (line["kind"], line["max_length"]) == (kind, max_length)
    ]


def keyed(requests: Iterable[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return {(line["task"], line["doc"], line["request"]): line for line in requests}


def loglikelihood(request: dict[str, Any]) -> float:
    answer = request["answer"]
    return answer[0] if isinstance(answer, list) else answer


def assert_as_golden(run: Run, max_length: int | None, *, greedy: bool = True) -> int:
    """Each answer is that of transformers; how many there were."""
    wanted = keyed(golden("request", max_length))
    for key, request in keyed(run["requests"]).items():
        line = wanted[key]
        assert request["arguments"] == line["arguments"]
        assert abs(loglikelihood(request) - line["loglikelihood"]) <= TOLERANCE, key
        if greedy and isinstance(request["answer"], list):
            assert request["answer"][1] == line["is_greedy"], key
    return len(run["requests"])


def metrics(run: Run) -> dict[tuple[str, str], float]:
    return {
        (task, name): value
        for task, numbers in run["results"].items()
        for name, value in numbers.items()
        if isinstance(value, float) and "stderr" not in name
    }


@pytest.mark.parametrize(
    ("name", "max_length", "requests"),
    [
        ("mlxscore", None, 126),
        ("mlxscore, short", SHORT_LENGTH, 82),
        ("local-completions", None, 82),
        ("local-completions, short", SHORT_LENGTH, 52),
    ],
)
def test_whole_tasks_as_hf_with_transformers_has_them(
    runs: dict[str, Run], name: str, max_length: int | None, requests: int
) -> None:
    run = runs[name]
    assert assert_as_golden(run, max_length) == requests
    wanted = {
        (line["task"], metric): value
        for line in golden("metrics", max_length)
        if line["task"] in run["results"]
        for metric, value in line.items()
        if metric not in ("kind", "max_length", "task")
    }
    assert metrics(run) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", list(combinations()))
def test_batches_concurrency_and_how_prompts_are_sent_change_nothing(
    runs: dict[str, Run], name: str
) -> None:
    run = runs[name]
    wrong_greedy = run["config"]["model"] == "sglang-generate"
    assert assert_as_golden(run, None, greedy=not wrong_greedy) == 8
    wanted = metrics(runs["mlxscore, batch 1, 1 concurrent"])
    found = metrics(run)
    if wrong_greedy:  # of which this metric is made
        del wanted["mlxscore_lastword", "acc,none"], found["mlxscore_lastword", "acc,none"]
    assert found == pytest.approx(wanted, rel=1e-4)


def test_gguf(runs: dict[str, Run]) -> None:
    assert assert_as_golden(runs["gguf"], None) == 2 * 4 + 2


def test_chat_templates(runs: dict[str, Run], default_model_dir: Path) -> None:
    (own,), (other,) = (
        runs[f"{kind}, chat"]["requests"] for kind in ("mlxscore", "local-completions")
    )
    assert "<|im_start|>assistant\n" in own["arguments"][0]
    assert own["arguments"] == other["arguments"]
    assert loglikelihood(own) == pytest.approx(loglikelihood(other), abs=TOLERANCE)
    assert own["answer"][1] == other["answer"][1]


@pytest.mark.parametrize("max_length", [None, SHORT_LENGTH])
def test_the_server_s_own_windows_are_lm_eval_s(
    server: ServerProcess, max_length: int | None
) -> None:
    lines = [line for line in golden("request", max_length) if line["task"] == "mlxscore_rolling"]
    with Client(server.url) as client:
        texts = [line["arguments"][0] for line in lines]
        found = client.loglikelihood_rolling(texts, window=max_length)
    assert found == pytest.approx([line["loglikelihood"] for line in lines], abs=TOLERANCE)


class OwnPath:
    """The model's own call, alone, unpadded, full logits; ids by lm_eval's rules, written anew."""

    def __init__(self, folder: Path) -> None:
        import mlx_lm
        from transformers import AutoTokenizer

        self._model = mlx_lm.load(str(folder))[0]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))

    def score(self, arguments: list[str]) -> tuple[float, list[bool]]:
        """Loglikelihood, and whether each token is the first choice."""
        import mlx.core as mx

        ids, start = self._row(*arguments)
        logits = self._model(mx.array([ids[:-1]]))[0].astype(mx.float32)
        scores = np.array(logits).astype(np.float64)[start - 1 :]
        scores -= scores.max(axis=-1, keepdims=True)
        targets = (np.arange(len(scores)), ids[start:])
        logprobs = scores[targets] - np.log(np.exp(scores).sum(axis=-1))
        return float(logprobs.sum()), (scores.argmax(axis=-1) == ids[start:]).tolist()

    def _row(self, context: str, continuation: str | None = None) -> tuple[list[int], int]:
        if continuation is None:
            context, continuation = "", context  # a document
        if not context:
            return [self._tokenizer.bos_token_id, *self._tokenizer.encode(continuation)], 1
        kept = context.rstrip()
        before = self._tokenizer.encode(kept)
        after = self._tokenizer.encode(context + continuation)[len(before) :]
        return before + after, len(before)


def test_the_model_s_own_call_says_the_same(runs: dict[str, Run], default_model_dir: Path) -> None:
    path = OwnPath(default_model_dir)
    own = {
        key: path.score(request["arguments"])
        for key, request in keyed(runs["mlxscore"]["requests"]).items()
        if key[1] < OWN_DOCUMENTS
    }
    assert len(own) == 16
    for name, run in runs.items():
        if "short" in name or "chat" in name:
            continue
        for key, request in keyed(run["requests"]).items():
            if key not in own:
                continue
            wanted, greedy = own[key]
            assert abs(loglikelihood(request) - wanted) <= TOLERANCE, (name, key)
            if isinstance(request["answer"], list):
                # lm_eval's sglang-generate has != where == is meant.
                flags = [not g for g in greedy] if name.startswith("sglang") else greedy
                assert request["answer"][1] == all(flags), (name, key)


WITHOUT_LM_EVAL_S_OWN_TASKS = """
import functools
from lm_eval.tasks import TaskManager
# To look through its own 14,000 files takes 15 s.
TaskManager.__init__ = functools.partialmethod(TaskManager.__init__, include_defaults=False)
from mlxscore_client.lm_eval_command import main
main()
"""


def test_the_command(server: ServerProcess, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", WITHOUT_LM_EVAL_S_OWN_TASKS),
            *("--model", "mlxscore", "--model_args", f"base_url={server.url}"),
            *("--tasks", "mlxscore_lastword", "--include_path", str(TESTS / "lm_eval_tasks")),
            *("--limit", "2", "--batch_size", "auto", "--log_samples"),
            *("--output_path", str(tmp_path / "out"), "--use_cache", str(tmp_path / "cache")),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | ENV | {"HF_DATASETS_CACHE": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "mlxscore_lastword" in done.stdout
    assert "Running loglikelihood requests: 100%" in done.stderr
    (file,) = (tmp_path / "out").rglob("results_*.json")
    config = json.loads(file.read_text(encoding="utf-8"))["config"]
    assert config["model"] == "mlxscore"
    assert config["system_fingerprint"].startswith("fp-")
    assert (tmp_path / "cache_rank0.db").exists()
