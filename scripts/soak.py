"""A server process at twice its load, for as long as you like: is every answer right, and none lost?

The model is one by formula (tests/steady_model.py) that takes a known time for each token, so that a
queue forms; the server around it is the real one. A supervisor starts it again whenever it ends; in the
first half of the run it gets SIGKILL and SIGTERM in turn. The callers use the client library with its
retries. Of the calls 5% leave before their answer, 5% send a hostile body, 1% hold a row on which the
model raises. Each answer is compared with the stored one; each text is one caller's only, so that an
answer that belongs to another shows as "swapped".

  wrong     an answer that is not the stored one
  swapped   an answer that is another call's
  lost      a call without an answer in spite of its retries, or with an error that it did not cause
  gave up   a call that was refused (429, 503) as often as it tried: clear, and not counted as lost

The exit code is 1 where one of the first three, or an end of the process that nobody asked for, is
not 0.

--real takes the default model instead; its answers are stored first, each asked for alone (no rows
that raise then).
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the model by formula and the hostile bodies

from soaking import report  # noqa: E402
from soaking.session import Plan, run  # noqa: E402


def main() -> int:
    args = parse_args()
    logging.basicConfig(level=logging.WARNING)
    seconds = 3.0 if args.quick else 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        log = args.log or Path(folder, "server.log")
        log.unlink(missing_ok=True)
        plan = Plan(
            seconds=seconds,
            capacity_seconds=0.5 if args.quick else 5.0,
            restarts=args.restarts,
            callers=args.callers,
            seconds_per_token=args.microseconds_per_token / 1e6,
            real=args.real,
            stored=40,
            seed=args.seed,
            log=log,
            flags=tuple(args.flags),
        )
        found = asyncio.run(run(plan))
    print(report.text(found))
    return int(found.bad)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="some seconds, one restart")
    parser.add_argument("--real", action="store_true", help="the default model")
    parser.add_argument(
        "--restarts", type=int, help="in the first half (default: one every other minute)"
    )
    parser.add_argument("--callers", type=int, default=600, help="at most at a time (default 600)")
    parser.add_argument(
        "--microseconds-per-token",
        type=float,
        help="of the model by formula (default 50); with --real, what the queue's limit is reckoned with "
        "(default 1000)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep the server's log there")
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="of mlxscore-server")
    args = parser.parse_args()
    if args.microseconds_per_token is None:
        args.microseconds_per_token = 5.0 if args.quick else 1000.0 if args.real else 50.0
    if args.restarts is None:
        args.restarts = 1 if args.quick else max(2, round(args.minutes / 2))
    return args


if __name__ == "__main__":
    sys.exit(main())
