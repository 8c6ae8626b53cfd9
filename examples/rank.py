"""Which of several continuations does the model find likeliest?

For multiple choice, acceptability, next events: whatever can be asked as "which of these comes next".

    python examples/rank.py "The capital of France is" " London" " Paris" " a city in Europe."
    python examples/rank.py --normalize byte "The capital of France is" " London" " a city in Europe."
"""

import argparse

from mlxscore_client import Client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("context")
    parser.add_argument("continuations", nargs="+", help="each mostly begins with a space")
    parser.add_argument(
        "--normalize",
        choices=["none", "token", "byte", "char"],
        default="none",
        help="what to divide by, so that long continuations have a chance",
    )
    asked = parser.parse_args()

    with Client() as client:
        ranked = client.rank(asked.context, asked.continuations, normalize=asked.normalize)
    for place, one in enumerate(ranked, start=1):
        print(
            f"{place}. {one.probability:6.1%}  {one.loglikelihood:9.3f} nats {one.continuation!r}"
        )


if __name__ == "__main__":
    main()
