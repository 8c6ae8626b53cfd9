"""One run: the parts in order, each of which may fail alone."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import loads, machine
from benchmarks.result import Result, Run


class Session:
    """What `--help` describes, into `run`; written to --json after each part.

    All of MLX's work here happens on one thread: the engine's, which calls `_contest` to load its model
    and serves that afterwards; the main one where the server's packages are missing.
    """

    def __init__(self, args: argparse.Namespace, run: Run) -> None:
        self._args, self._run = args, run
        self._cache = machine.cache_dir()
        self._others = machine.Others()
        self._blas = machine.load_blas(self._cache)  # before MLX
        self._on_gpu = False
        self._scale = 1.0
        self._loads: tuple[str, ...] = ()

    def measure(self) -> None:
        import mlx.core as mx

        from mlxscore_server.device import current

        device = current()
        mx.set_cache_limit(device.cache_bytes)
        args, run = self._args, self._run
        self._on_gpu = device.name != "cpu"
        self._scale = args.scale or (1.0 if self._on_gpu else 1 / 16)
        self._loads = args.loads or loads.chosen(self._on_gpu, args.quick)
        run.machine |= machine.describe(device.name, self._blas)
        run.machine |= {"model": args.shape, "scale": f"{self._scale:g}"}
        say(f"{args.shape} on {run.machine['device']}, scale {self._scale:g}")
        try:
            from benchmarks import live
        except ImportError as error:
            run.failures["bulk, http"] = f"{error.name} is missing"
            with self._part("contest"):
                self._contest()
        else:
            asyncio.run(self._with_engine(live))
        run.machine["other processes"] = self._others.share()

    async def _with_engine(self, live: Any) -> None:
        from mlxscore_server.engine import Engine
        from mlxscore_server.settings import Settings

        engine = Engine(Settings(), self._contest)
        engine.start()
        with self._part("contest"):
            await engine.ready()
            vocab_size = engine.loaded.card.vocab_size
            if "bulk" in self._loads:
                with self._part("bulk"):
                    maker = loads.Maker(vocab_size, self._scale, 7)
                    found = await live.pair_behind_bulk(engine, maker, self._seconds_of_tokens())
                    self._figures(found)
            if "http" in self._loads and self._args.served:
                with self._part("http"):
                    rounds = 1 if self._args.quick else 3
                    self._figures(await live.clients(engine, vocab_size, self._scale, rounds))
        await engine.close()

    def _contest(self) -> Any:
        """Everything that runs on the MLX thread; the loaded model for the engine."""
        from benchmarks import models
        from benchmarks.contest import Contest
        from benchmarks.field import Field
        from benchmarks.ours import Ours
        from benchmarks.rivals import Rivals, four_bit
        from mlxscore_server.device import current

        args, run = self._args, self._run
        with ExitStack() as stack:
            run.matmul = machine.matmul(not self._on_gpu)
            say("model")
            model = models.load(args.shape, self._on_gpu, self._cache)
            weights = models.Weights.of(model.model)
            run.machine["weights"] = models.describe(model.model)
            ours = Ours(model, current())
            run.machine |= ours.described()
            scratch = Path(tempfile.mkdtemp(prefix="mlxscore-bench-"))
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            field = Field(ours, weights, scratch, self._on_gpu, machine.memory_bytes())
            rivals = Rivals(args, self._cache, self._on_gpu, ours.max_batch_tokens)
            with self._part("peers"):
                rivals.start(model, field, run, stack)
            contest = Contest(field, args.contestants, args.repeats, args.seconds, self._keep)
            for name in self._loads:
                if name in loads.LOADS:
                    with self._part(name):
                        contest.run(loads.make(name, ours.vocab_size, self._scale))
            if "completions" in self._loads:
                with self._part("completions"):
                    self._completions(field)
            if "four-bit" in self._loads:
                with self._part("four-bit"):
                    load = loads.make("uniform", ours.vocab_size, self._scale)
                    whole = run.loads["uniform"].times["cold"].best
                    self._figures(four_bit(rivals.options, field, load, whole))
        ours.release()
        return ours.loaded

    def _completions(self, field: Any) -> None:
        from benchmarks.completions import Echo

        repeats = min(3, self._args.repeats)
        echo = Echo(field, self._scale)
        if "own" in field.peers:
            self._figures(echo.tops(repeats))
        if self._args.shape == "default" and self._args.served:
            from benchmarks.served import Server

            with Server() as server:
                self._figures(server.figures())
                self._figures(echo.served(server, repeats))

    def _seconds_of_tokens(self) -> float | None:
        """What a full micro-batch takes, by the uniform load."""
        load = self._run.loads.get("uniform")
        if load is None or "cold" not in load.times:
            return None
        tokens = float(self._run.machine["tokens of a micro-batch"].replace(",", ""))
        return load.times["cold"].best * tokens / load.computed_tokens

    def _figures(self, found: dict[str, float]) -> None:
        self._run.figures |= found
        self._write()

    def _keep(self, result: Result) -> None:
        self._run.loads[result.name] = result
        self._write()

    def _write(self) -> None:
        if self._args.json:
            self._run.write(self._args.json)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """What goes wrong in a part of the run is a line of the report."""
        say(name)
        try:
            yield
        except Exception as error:
            self._run.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            say(f"{name} failed: {self._run.failures[name]}")
            self._write()


def say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)
