"""Makes lm_eval_requests.jsonl: lm_eval's own `hf` model type, float32, one row at a time.

Every request of the tasks in tests/lm_eval_tasks, as lm_eval made it, with what transformers said.
Needs what the tests do not: pip install 'lm_eval[hf]' (torch). From the repository's root:
    python tests/golden/lm_eval_requests.py
"""

import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import lm_eval
from lm_eval.tasks import TaskManager

from mlxscore_server.default_model import ensure_default_model
from mlxscore_server.settings import Settings

TASKS = ["letters", "choices", "lastword", "pairs", "rolling", "edges"]
SHORT_LENGTH = 16
"""Of a second pass, in which contexts are cut and documents take several windows."""


def main() -> None:
    settings = Settings()
    folder = ensure_default_model(settings.cache_dir, settings.default_wheel)
    root = Path(__file__).parents[2]
    lines = [line for max_length in (None, SHORT_LENGTH) for line in run(folder, root, max_length)]
    path = Path(__file__).with_suffix(".jsonl")
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(f"{sum(line['kind'] == 'request' for line in lines)} requests in {path}")


def run(folder: Path, root: Path, max_length: int | None) -> list[dict[str, Any]]:
    """A line for each request, then one for each task's metrics."""
    options = {
        "pretrained": str(folder),
        "dtype": "float32",
        # torch's float32 log-softmax is off by 1.4e-5 nats a token, all to one side: 1e-3 in 75 tokens.
        "softmax_dtype": "float64",
        "device": "cpu",
    }
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=options | ({"max_length": max_length} if max_length else {}),
        tasks=[f"mlxscore_{task}" for task in TASKS],
        task_manager=TaskManager(include_path=str(root / "tests" / "lm_eval_tasks")),
        batch_size=1,
        log_samples=True,
        bootstrap_iters=0,
    )
    lines: list[dict[str, Any]] = []
    for task, samples in found["samples"].items():
        for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
            answers = zip(sample["arguments"], sample["resps"], strict=True)
            for i, (arguments, (answer,)) in enumerate(answers):
                whole = not isinstance(answer, list | tuple)
                lines.append(
                    {
                        "kind": "request",
                        "max_length": max_length,
                        "task": task,
                        "doc": sample["doc_id"],
                        "request": i,
                        "arguments": list(arguments),
                        "loglikelihood": round(answer if whole else answer[0], 6),
                        "is_greedy": None if whole else answer[1],
                    }
                )
    for task, metrics in found["results"].items():
        numbers = {k: v for k, v in metrics.items() if isinstance(v, float) and "stderr" not in k}
        lines.append({"kind": "metrics", "max_length": max_length, "task": task} | numbers)
    return lines


if __name__ == "__main__":
    main()
