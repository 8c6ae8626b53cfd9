"""Runs pip-audit and says what it found; also where it found nothing because it could ask nobody.

usage: audit.py PIP_AUDIT [ITS ARGUMENTS]. Exit codes: 0 nothing known, 1 faults, 3 nobody answered.
"""

import json
import subprocess
import sys
from typing import Any

NO_ANSWER = 3


def audit(command: list[str]) -> int:
    """Run it over constraints.txt; the exit code."""
    # Every version is pinned: there is nothing to resolve and nothing to install.
    flags = ["-r", "constraints.txt", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run(
        [*command, *flags, "--timeout", "10", "-f", "json"], capture_output=True, text=True
    )
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"audit: skipped: pip-audit has no answer: {why[:200]}", file=sys.stderr)
        return NO_ANSWER
    # It counts what it could not ask about as well.
    skipped = [package["name"] for package in found if "skip_reason" in package]
    if len(skipped) == len(found):
        print("audit: skipped: the advisory service cannot be reached from here", file=sys.stderr)
        return NO_ANSWER
    if skipped:
        print(f"audit: not known to the service: {', '.join(skipped)}", file=sys.stderr)
    faults = [
        f"{package['name']} {package['version']}: {fault['id']}, mended in "
        f"{', '.join(fault['fix_versions']) or 'no version yet'}"
        for package in found
        for fault in package.get("vulns", [])
    ]
    for fault in faults:
        print(fault)
    print(f"audit: {len(found) - len(skipped)} packages, {len(faults)} known faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(audit(sys.argv[1:]))
