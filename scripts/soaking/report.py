"""What a run found, as text."""

from soaking.meter import Sample
from soaking.session import Outcome
from soaking.tally import PERCENTILES

_ROWS = 16


def text(found: Outcome) -> str:
    """Counts, latencies, memory and descriptors."""
    tally = found.tally
    retried = tally.sent - tally.calls
    lines = [
        f"capacity      {found.capacity:.0f} calls/s",
        f"offered       {found.offered:.2f} x capacity over {found.load_seconds:.0f} s, "
        "what was sent again included",
        f"calls         {tally.calls}",
        f"sent          {tally.sent} requests ({max(0, retried)} of them again)",
        f"answered      {tally.answered}  ({_counts(tally.by_kind)})",
        f"wrong         {tally.wrong}",
        f"lost          {tally.lost}",
        f"swapped       {tally.swapped}",
        f"left          {tally.left}",
        f"bad bodies    {tally.bad_bodies}, each refused",
        f"raised        {tally.raised}, each named",
        f"gave up       {tally.gave_up}, after all retries, with a 429 or 503",
        f"statuses      {_counts(tally.statuses)}",
        f"processes     {_counts(found.supervisor.ends)}",
        f"unexpected    {found.supervisor.unexpected} ends",
        f"latency       {_latencies(tally.latencies)}",
    ]
    lines += ["", *_memory(found)]
    if tally.examples:
        lines += ["", "Examples of what went wrong:", *tally.examples]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def _latencies(seconds: list[float]) -> str:
    if not seconds:
        return "no answers"
    ordered = sorted(seconds)
    shown = [
        f"p{percent:g} {ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]:.2f} s"
        for percent in PERCENTILES
    ]
    return f"{', '.join(shown)}, most {ordered[-1]:.2f} s (waiting and retries included)"


def _memory(found: Outcome) -> list[str]:
    samples = found.meter.samples
    if not samples:
        return ["memory and descriptors: only on Linux"]
    step = max(1, len(samples) // _ROWS)
    lines = ["seconds  process  its age  RSS MB  descriptors"]
    lines += [
        f"{s.seconds:7.0f}  {s.generation:7d}  {s.age:7.0f}  {s.rss:6.1f}  {s.descriptors:11d}"
        for s in samples[::step]
    ]
    drift = found.meter.drift()
    if drift is not None:
        life = found.meter.last_life()
        lines.append(
            f"drift over the last {life[-1].seconds - life[0].seconds:.0f} s of the last process, warm: "
            f"RSS {drift[0]:+.1%}, descriptors {drift[1]:+.0f}"
        )
    return [*lines, f"at rest: {_rest(found.rest_before)} before, {_rest(found.rest_after)} after"]


def _rest(sample: Sample | None) -> str:
    return f"{sample.descriptors} descriptors" if sample else "unknown"
