"""Speed and memory of mlxscore on this machine, side by side with what it should be compared to.

How to read the first table. Speeds are flat tokens a second: the tokens of all rows as they were
asked for (without each row's last, which is only ever a target), divided by the best time of
`--repeats`. The contestants take turns, since machines are noisy; what counts is the ratios, and
these only where "other processes" used next to nothing meanwhile.

  own      the model's own forward pass on the same rows, unpadded, one length at a time, without
           head or scores: what a perfect scorer could not beat, unless rows have equal inputs
  core     mlxscore's plan and score, all of its Python included
  naive    rows in the order given, padded to the longest of each batch, boolean mask, logits of all
           positions, log-softmax of everything, gather
  served   the core behind HTTP: a real server process, one request with all rows as token ids
  computed tokens that the core really sends through the model, padding not counted
  peak     highest memory that MLX held beyond the weights
  core - naive  largest difference of a logprob, which shows that both do the same work; 1e-4 to
           3e-4 on a CPU is the naive path's error (MLX adds long float32 rows one by one there)

Loads: A, 32 rows x 512 with 32 wanted (A', GPU only: one row a token shorter, so that there is
padding); B, 64 rows of 16-512 with 16 wanted; C, 16 questions of about 100 tokens x 4 one-letter
choices, compared with the same 16 questions x 1. Echo: 64 rows x 512 with all positions wanted and
with the 0, 1 and 5 most likely tokens of each ("own" as above); and 64 prompts x 256 as
/v1/completions, through the core ("core") and over HTTP ("served"). `--scale` makes A, B and echo
smaller (1/8 by default on a CPU); the tables state the rows. MLX runs on one thread throughout.

On a GPU machine without an installation:
    PYTHONPATH=server:client python3 scripts/bench.py --shape llama-1b
"""

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine
from benchmarks.shapes import SHAPES


def main() -> None:
    args = parse_args()
    others = machine.Others()
    cache_dir = machine.cache_dir()
    blas = machine.load_blas(cache_dir)
    # Only now: the BLAS must be loaded before MLX is.
    import mlx.core as mx
    from benchmarks import completions, contest, loads, models
    from benchmarks.report import Report

    from mlxscore_server.device import current

    device = current()
    mx.set_cache_limit(device.cache_bytes)
    on_cpu = device.name == "cpu"
    scale = args.scale or (0.125 if on_cpu else 1.0)
    report = Report(
        machine.describe(device.name, blas) | {"model": args.shape, "scale": f"{scale:g}"}
    )
    say(f"{args.shape} on {device.name}, scale {scale:g}, best of {args.repeats}")
    report.matmul = machine.matmul(on_cpu)

    say("memory of 64 x 512")
    report.memory = contest.memory_of_64_x_512(device)

    with ExitStack() as stack:
        model, folder = models.load(args.shape, device, cache_dir)
        report.machine["weights"] = models.describe(model)
        url = None
        if folder is not None and args.served:
            from benchmarks.served import Server

            say("server starts")
            server = stack.enter_context(Server())
            report.start_seconds = server.start_seconds
            report.idle_cpu_seconds = server.idle_cpu_seconds()
            url = server.url
        field = contest.Field(model, device, url)
        for load in loads.all_loads(field.vocab_size, scale, with_shorter=not on_cpu):
            say(f"load {load.name}")
            report.loads.append(field.run(load, args.repeats))
        say("echo")
        report.echo = completions.measure(field, url, scale, args.repeats)

    report.machine["other processes"] = others.share()
    print(report.text())
    if args.json:
        args.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    if args.markdown:
        args.markdown.write_text(report.markdown(), encoding="utf-8")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape",
        choices=["default", *SHAPES],
        default="default",
        help="default: the embedded model; others: random weights of that shape, not served",
    )
    parser.add_argument("--repeats", type=int, default=3, help="best of this many (default 3)")
    parser.add_argument("--scale", type=float, help="factor on the rows of loads A and B")
    parser.add_argument("--no-served", dest="served", action="store_false", help="no server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    return parser.parse_args()


def say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # MLX's compiled functions make some normal interpreter exits fail.
    os._exit(0)
