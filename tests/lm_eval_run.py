"""Runs lm_eval in a process of its own: many evaluations for one start, which takes seconds.

usage: python lm_eval_run.py OUTPUT < RUNS    both JSON; see `run`. From the repository's root.
"""

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

import mlxscore_client.lm_eval  # noqa: F401  (registers the model type)

TASKS = Path(__file__).parent / "lm_eval_tasks"


def run(manager: TaskManager, options: dict[str, Any]) -> dict[str, Any]:
    """Options of `simple_evaluate`; its results, and what it logged of each request."""
    found = lm_eval.simple_evaluate(
        task_manager=manager, log_samples=True, bootstrap_iters=0, **options
    )
    requests = [
        {
            "task": task,
            "doc": sample["doc_id"],
            "request": i,
            "arguments": list(arguments),
            "answer": answer,
        }
        for task, samples in found["samples"].items()
        for sample in samples
        for i, (arguments, (answer,)) in enumerate(
            zip(sample["arguments"], sample["resps"], strict=True)
        )
    ]
    return {"results": found["results"], "config": found["config"], "requests": requests}


def main() -> None:
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    runs = json.load(sys.stdin)
    found = {name: run(manager, options) for name, options in runs.items()}
    Path(sys.argv[1]).write_text(json.dumps(found, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
