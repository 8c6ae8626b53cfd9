"""scripts/soak: some seconds of it, restart included; and that it would tell what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_some_seconds() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "soak.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("wrong", "lost", "swapped", "unexpected"):
        assert int(found[name].split()[1]) == 0
    for name in ("answered", "left", "bad", "raised"):
        number = next(part for part in found[name].split() if part.strip(",").isdigit())
        assert int(number.strip(",")) > 0, name
    assert "SIGKILL -> exit code -9: 1" in found["processes"]
    assert "SIGTERM -> exit code 0: 1" in found["processes"]


def test_what_is_wrong_is_told() -> None:
    from soaking.asks import make
    from soaking.tally import Tally

    asks = (make(number, 0) for number in range(100))
    mine, theirs, *_ = (ask for ask in asks if ask.kind == "pairs" and len(ask.known()) > 1)
    for got, count in (
        (mine.known(), "answered"),
        (theirs.known(), "swapped"),
        (mine.known()[::-1], "wrong"),
        (mine.known()[:-1], "wrong"),
        ((), "wrong"),
    ):
        tally = Tally(tolerance=1e-9)
        for name, ask in (("mine", mine), ("theirs", theirs)):
            tally.expect(ask, name, ask.known())
        tally.answer(mine, "mine", mine.known(), got, 0.1)
        assert getattr(tally, count) == 1
        assert tally.bad == (count != "answered")
    tally = Tally(tolerance=1e-9)
    tally.lose("mine", ConnectionError("gone"))
    assert tally.bad
    assert "gone" in tally.examples[0]
