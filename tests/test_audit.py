"""scripts/audit: what pip-audit says, and above all what it does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WELL: dict[str, Any] = {"name": "well", "version": "1", "vulns": []}
ILL: dict[str, Any] = {
    "name": "ill",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "aliases": [], "description": ""}],
}
UNKNOWN: dict[str, Any] = {"name": "unknown", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([WELL], 0, "1 packages, 0 known faults"),
        ([WELL, UNKNOWN], 0, "not known to the service: unknown"),
        ([WELL, ILL, UNKNOWN], 1, "ill 2: PYSEC-1, mended in 3"),
        ([UNKNOWN, UNKNOWN], 3, "cannot be reached"),
        (None, 3, "no answer: ConnectionError"),
    ],
)
def test_the_verdict(
    tmp_path: Path, found: list[dict[str, Any]] | None, code: int, said: str
) -> None:
    fake = tmp_path / "pip-audit.py"
    answer = "" if found is None else json.dumps({"dependencies": found, "fixes": []})
    error = "Traceback\nConnectionError" if found is None else ""
    # As pip-audit has it: 1 for faults, and 0 where it knew none of the packages.
    fake.write_text(
        f"import sys\nassert '-r' in sys.argv and '--no-deps' in sys.argv\n"
        f"print({answer!r})\nprint({error!r}, file=sys.stderr)\nsys.exit({int(code != 0)})\n"
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/audit.py"), sys.executable, str(fake)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
