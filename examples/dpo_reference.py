"""Adds reference logprobs to preferences, so that DPO trains without a reference model in memory.

Each line of the file is a JSON object with `prompt`, `chosen` and `rejected`: texts, or lists of messages.
It is written again with `ref_chosen_logps` and `ref_rejected_logps`, as TRL's DPOTrainer takes them.
Serve the model that training starts from.

    python examples/dpo_reference.py examples/data/preferences.jsonl with_logps.jsonl
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from mlxscore_client import Client

AT_ONCE = 256
"""Lines a call: the prompt of a pair is computed once, and a file of any length fits into memory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--max-length", type=int, help="as DPOConfig's max_length")
    asked = parser.parse_args()

    count = 0
    with (
        Client() as client,
        asked.file.open(encoding="utf-8") as file,
        asked.out.open("w", encoding="utf-8") as out,
    ):
        lines = (json.loads(line) for line in file if line.strip())
        while pairs := list(islice(lines, AT_ONCE)):
            columns = ([pair[name] for pair in pairs] for name in ("prompt", "chosen", "rejected"))
            for pair, found in zip(
                pairs, client.dpo_logps(*columns, max_length=asked.max_length), strict=True
            ):
                pair["ref_chosen_logps"] = found.ref_chosen_logps
                pair["ref_rejected_logps"] = found.ref_rejected_logps
                out.write(json.dumps(pair, ensure_ascii=False) + "\n")
            count += len(pairs)
    print(f"{count} pairs: {asked.out}")


if __name__ == "__main__":
    main()
