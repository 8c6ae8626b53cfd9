"""Surprisal of every word, one row a word, ready to be joined with reading times.

Each line of the file is a sentence (or a whole text) of its own. Bits; words stand between white space and
are corrected for tokens that begin with a space.

    python examples/surprisal_to_csv.py examples/data/sentences.txt surprisal.csv
"""

import argparse
import csv
from pathlib import Path

from mlxscore_client import Client

COLUMNS = ["sentence", "word_number", "word", "surprisal_bits", "num_tokens", "bow_correction"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    lines = asked.file.read_text("utf-8").splitlines()
    sentences = [line for line in lines if line.strip()]

    with Client() as client, asked.out.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out)
        table.writerow(COLUMNS)
        for number, found in enumerate(client.surprisal(sentences, unit="bits"), start=1):
            for place, word in enumerate(found.words, start=1):
                value = f"{word.surprisal:.4f}"
                row = [number, place, word.text, value, word.num_tokens, found.bow_correction]
                table.writerow(row)
    print(f"{len(sentences)} sentences: {asked.out}")


if __name__ == "__main__":
    main()
