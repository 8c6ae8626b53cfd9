"""A run from the first start to the last stop."""

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from soaking.callers import Callers
from soaking.meter import Meter, Sample
from soaking.process import Supervisor, real_command, steady_command
from soaking.tally import Tally

OVERLOAD = 2.0
_CHAOS_PART = 0.5
"""Restarts come in this first part of a run; then one process lives long enough to be measured."""
_QUEUED_SECONDS = 2.0
_QUIET_SECONDS = 120


@dataclass(frozen=True)
class Plan:
    """What a run is like."""

    seconds: float
    capacity_seconds: float
    restarts: int
    callers: int
    """At most so many calls are under way."""
    seconds_per_token: float
    real: bool
    stored: int
    """How many answers are stored first, where no formula gives them."""
    seed: int
    log: Path
    flags: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What a run found."""

    tally: Tally
    supervisor: Supervisor
    meter: Meter
    capacity: float
    """Calls a second that are answered while the queue is never empty."""
    offered: float
    """Bytes of bodies sent over those that the capacity would take."""
    load_seconds: float
    rest_before: Sample | None
    rest_after: Sample | None

    @property
    def bad(self) -> bool:
        return self.tally.bad or bool(self.supervisor.unexpected)


async def run(plan: Plan) -> Outcome:
    """Start a server, load it, restart it, stop it."""
    command = real_command() if plan.real else steady_command(plan.seconds_per_token)
    limit = str(int(_QUEUED_SECONDS / plan.seconds_per_token))
    command += ["--max-queued-tokens", limit, *plan.flags]
    supervisor = Supervisor(command, plan.log)
    await supervisor.start()
    try:
        return await _loaded(plan, supervisor)
    finally:
        await supervisor.stop()


async def _loaded(plan: Plan, supervisor: Supervisor) -> Outcome:
    meter = Meter(supervisor)
    rest_before = meter.look()
    tolerance = 1e-4 if plan.real else 1e-9
    tally = Tally(tolerance)
    callers = Callers(supervisor.url, tally, raisers=not plan.real, seed=plan.seed)
    if plan.real:
        await callers.store(plan.stored)
    calls, size = await _capacity(plan, callers)
    watching = asyncio.create_task(meter.run(max(0.2, plan.seconds / 600)))
    begun, before = time.monotonic(), callers.tally.bytes_sent
    restarting = asyncio.create_task(_restart(plan, supervisor))
    waiting = await _load(plan, callers, size)
    seconds = time.monotonic() - begun
    offered = (callers.tally.bytes_sent - before) / seconds / size
    await restarting
    watching.cancel()
    done, never = await asyncio.wait(waiting, timeout=_QUIET_SECONDS) if waiting else (set(), set())
    for task in never:
        task.cancel()
        tally.lose("a call", TimeoutError("no answer, long after the last was sent"))
    for task in done:
        task.result()  # a fault of this script is loud
    await callers.close()
    rest_after = await _at_rest(meter, rest_before)
    return Outcome(tally, supervisor, meter, calls, offered, seconds, rest_before, rest_after)


async def _capacity(plan: Plan, callers: Callers) -> tuple[float, float]:
    """Calls and bytes of bodies a second that are answered where somebody always waits."""
    begun, size, answered = time.monotonic(), callers.tally.bytes_sent, callers.tally.answered
    end = begun + plan.capacity_seconds

    async def one_after_the_other() -> None:
        while time.monotonic() < end:
            await callers.another()

    async with asyncio.TaskGroup() as group:
        for _ in range(24):
            group.create_task(one_after_the_other())
    seconds = time.monotonic() - begun
    return (
        (callers.tally.answered - answered) / seconds,
        (callers.tally.bytes_sent - size) / seconds,
    )


async def _load(plan: Plan, callers: Callers, size: float) -> set["asyncio.Task[None]"]:
    """Send OVERLOAD times `size` bytes a second, what is sent again included; who still waits."""
    begun, start = time.monotonic(), callers.tally.bytes_sent
    waiting: set[asyncio.Task[None]] = set()
    while (now := time.monotonic()) < begun + plan.seconds:
        due = OVERLOAD * size * (now - begun)
        while len(waiting) < plan.callers and callers.tally.bytes_sent - start < due:
            waiting.add(callers.one())
            await asyncio.sleep(0)  # it sends; what that costs is known before the next one
        await asyncio.sleep(0.01)
        for task in [task for task in waiting if task.done()]:
            waiting.discard(task)
            task.result()
    return waiting


async def _restart(plan: Plan, supervisor: Supervisor) -> None:
    """SIGTERM and SIGKILL in turn, evenly over the first part of the run."""
    gap = _CHAOS_PART * plan.seconds / max(1, plan.restarts)
    for number in range(plan.restarts):
        await asyncio.sleep(gap * (0.5 if number == 0 else 1))
        await supervisor.ready()
        supervisor.send(signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)


async def _at_rest(meter: Meter, before: Sample | None) -> Sample | None:
    """Once the connections are closed: after at most two seconds."""
    sample = meter.look()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            while sample and before and sample.descriptors > before.descriptors:
                await asyncio.sleep(0.05)
                sample = meter.look()
    return sample
