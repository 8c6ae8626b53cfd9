"""How well does the model predict these files? A table of perplexities.

Files of any length. Bits per byte and byte perplexity compare models with different tokenizers; token
perplexity does not.

    python examples/perplexity.py README.md CHANGELOG.md
    python examples/perplexity.py --stride 512 README.md    # more context for each token, more time
"""

import argparse
from pathlib import Path

from mlxscore_client import Client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--stride", type=int, help="new tokens a window (default: all of it)")
    asked = parser.parse_args()

    texts = [file.read_text("utf-8") for file in asked.files]
    with Client() as client:
        found = client.perplexity(texts, stride=asked.stride)
    print(
        f"{'tokens':>8} {'token ppl':>10} {'word ppl':>12} {'byte ppl':>9} {'bits/byte':>9}  file"
    )
    for name, one in [*zip(asked.files, found.texts, strict=True), ("all together", found)]:
        print(
            f"{one.num_tokens:8} {shown(one.token_perplexity):>10} {shown(one.word_perplexity):>12} "
            f"{shown(one.byte_perplexity):>9} {shown(one.bits_per_byte):>9}  {name}"
        )


def shown(value: float | None) -> str:
    """A perplexity that a float cannot hold is None."""
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main()
