"""Labels texts without training, and shows what calibration changes.

The file is CSV with the columns `text` and `label`. A model prefers some labels whatever the text says; the
calibrations take that out. Try them on a few dozen texts whose labels you know before you trust one.

    python examples/classify.py examples/data/reviews.csv
"""

import argparse
import csv
from pathlib import Path

from mlxscore_client import Client

TEMPLATE = "Review: {text}\nSentiment:"
# What stands in the file, and what is scored for it.
LABELS = {"good": " positive", "bad": " negative"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    with parser.parse_args().file.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [row["text"] for row in rows]

    with Client() as client:
        for calibration in ("none", "contextual", "pmi"):
            found = client.classify(texts, LABELS, TEMPLATE, calibration=calibration)
            right = sum(one.label == row["label"] for one, row in zip(found, rows, strict=True))
            print(f"\ncalibration {calibration}: {right} of {len(rows)} right")
            for one, row in zip(found, rows, strict=True):
                mark = " " if one.label == row["label"] else "x"
                print(f"{mark} {one.label:5} {one.probabilities[one.label]:6.1%}  {row['text']}")


if __name__ == "__main__":
    main()
