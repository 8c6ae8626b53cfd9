"""Whether a run is worse than an earlier one, by ratios: machines differ and are noisy."""

from benchmarks.result import CONTESTANTS, Run
from benchmarks.tables import Table


def ratios(run: Run) -> dict[str, float]:
    """How many times as fast as each other contestant ours is, by load; more is better."""
    found: dict[str, float] = {}
    for load in run.loads.values():
        for name in CONTESTANTS:
            ratio = load.ratio("cold", name) if name == "warm" else load.ratio(name, "cold")
            if name != "cold" and ratio is not None:
                found[f"{load.name}: " + ("warm/cold" if name == "warm" else f"cold/{name}")] = (
                    ratio
                )
    return found


def regressions(run: Run, stored: Run, tolerance: float) -> Table:
    """Ratios that fell by more than `tolerance`, a share; a head alone where there are none.

    Raises ValueError where nothing can be compared: another model, or no load in common.
    """
    if run.shape != stored.shape or run.on_gpu != stored.on_gpu:
        raise ValueError(f"the stored run is of {stored.shape} on {stored.machine.get('device')}")
    now, before = ratios(run), ratios(stored)
    common = [name for name in before if name in now]
    if not common:
        raise ValueError("the stored run has no load and contestant in common with this one")
    table = [["what", "stored", "now"]]
    for name in common:
        if now[name] < before[name] * (1 - tolerance):
            table.append([name, f"{before[name]:.2f}", f"{now[name]:.2f}"])
    return table
