"""Speed and memory of mlxscore on this machine, side by side with what it should be compared to.

How to read it. Speeds are flat tokens a second: the tokens of all rows as they were asked for (without
each row's last, which is only ever a target), divided by the best time. Contestants take turns in an
order that rotates, since machines are noisy; what counts is the ratios, and these only where "other
processes" used next to nothing meanwhile. Each has one pass that does not count, --repeats that do,
fewer once they took --seconds together; where the first alone took that long it counts, with a star.

  cold          mlxscore, nothing kept from before, all of its Python included
  warm          mlxscore, an exact repeat
  flat          mlxscore, no prefix shared
  floor         as many tokens as "cold" computes, as plain 512-token rows through the model's own
                body, without head or scores: what sharing could reach at best
  own           the model's own body on the same rows, unpadded, one length at a time, no head
  naive         rows in the order given, padded to the longest of each batch, boolean mask, logits of
                all positions, log-softmax of everything, gather
  evaluate      mlx_lm.evaluate's own code on the same BLAS
  transformers  with torch (sdpa), padded batches of rows sorted by length, logits of wanted columns
  llama.cpp     through llama-cpp-python where the peers' Python has it: the default model's own GGUF
                (quantised), one row after the other, a prefix common with the row before is kept

  computed      tokens that "cold" really sends through the model
  padding       share of what the model was given
  matmul peak   products with weights that the computed tokens need, a second, against the fastest
                square product measured here
  peak          highest memory beyond the weights, as each framework counts it
  first/cold    the first pass over a load's shapes against the best

All but ours run in processes of their own, on the same weights. torch and transformers come from this
Python, from --peers, or are installed once into the user's cache folder.

`--scale` makes the loads smaller (1/16 by default on a CPU); the tables state the rows. Beside the
loads of the table: "four-bit" ("uniform" with 4-bit weights, --dequantize auto and never), "bulk" (a
pair while 5,000 rows wait), "http" (64 clients), "completions" (echo of all positions with the most
likely tokens; over HTTP with the default model only).

A stored run: bench FILE.json prints it; with --pictures it is drawn, with --check compared.
On a GPU machine without an installation:
    PYTHONPATH=server:client python3 scripts/bench.py --shape llama-1b
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import compare, pictures, report
from benchmarks.loads import LOADS, OTHERS
from benchmarks.result import CONTESTANTS, QUICK, Run
from benchmarks.shapes import SHAPES
from benchmarks.tables import aligned


def main() -> int:
    args = parse_args()
    logging.basicConfig(level=logging.WARNING)
    run = Run.read(args.file) if args.file else measured(args)
    print(report.text(run))
    if args.markdown:
        args.markdown.write_text(report.markdown(run), encoding="utf-8")
    if args.pictures:
        for path in pictures.draw(run, args.pictures):
            print(path)
    return checked(run, args.check, args.tolerance) if args.check else 0


def measured(args: argparse.Namespace) -> Run:
    from benchmarks.session import Session

    run = Run()
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    Session(args, run).measure()
    if args.json:
        run.write(args.json)
    return run


def checked(run: Run, stored: Path, tolerance: float) -> int:
    """Says what fell behind a stored run; the exit code."""
    try:
        fallen = compare.regressions(run, Run.read(stored), tolerance)
    except ValueError as error:
        print(f"{stored}: {error}", file=sys.stderr)
        return 2
    if len(fallen) == 1:
        print(f"no ratio is more than {tolerance:.0%} below {stored}")
        return 0
    print(f"more than {tolerance:.0%} below {stored}:\n\n{aligned(fallen)}")
    return 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.json", help="a stored run")
    parser.add_argument(
        "--shape",
        choices=["default", *SHAPES],
        default="default",
        help="default: the embedded model; others: random weights of that shape",
    )
    parser.add_argument("--loads", type=names([*LOADS, *OTHERS]), help="some only: a,b")
    parser.add_argument("--contestants", type=names(list(CONTESTANTS)), help="some only: a,b")
    parser.add_argument("--repeats", type=int, help="passes that count (default 5)")
    parser.add_argument("--seconds", type=float, help="enough of a contestant (default 3)")
    parser.add_argument("--scale", type=float, help="factor on the loads' sizes")
    parser.add_argument(
        "--quick", action="store_true", help="fewer loads and contestants, one pass"
    )
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="has torch, transformers")
    parser.add_argument("--no-served", dest="served", action="store_false", help="no HTTP")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw the figures as SVG")
    parser.add_argument("--check", type=Path, metavar="FILE", help="exit 1 where ratios fell")
    parser.add_argument("--tolerance", type=float, default=0.15, help="for --check (default 0.15)")
    args = parser.parse_args()
    args.contestants = args.contestants or (QUICK if args.quick else CONTESTANTS)
    args.repeats = args.repeats if args.repeats is not None else (1 if args.quick else 5)
    args.seconds = args.seconds if args.seconds is not None else (1.0 if args.quick else 3.0)
    return args


def names(known: list[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(given: str) -> tuple[str, ...]:
        chosen = tuple(given.split(","))
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return chosen

    return parse


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    # MLX's compiled functions make some normal interpreter exits fail.
    os._exit(code)
