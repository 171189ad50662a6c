"""Run the tests in phases, the next one also after a failure, and end with one line that sums them up.

quick: what starts no processes; e2e: what does; soak: the long ones, only when asked for. Exit code 1 if any phase
failed or none found a test.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time

PHASES = {
    "quick": "not e2e and not soak",
    "e2e": "e2e and not soak",
    "soak": "soak",
}
NO_TESTS = 5  # pytest's exit code where it collected none


def run_phase(name: str, jobs: int, extra: list[str]) -> tuple[int, str]:
    """Run one phase, its output passed on as it comes; returns pytest's exit code and its closing counts."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", PHASES[name], *extra]
    if jobs > 1:
        command += ["-n", str(jobs), "--dist", "loadgroup"]
    if name == "soak":
        command += ["--timeout", "14400"]
    print(f"== {name}: {' '.join(command[1:])}", flush=True)
    counts = "no result"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if re.search(r"\d+ (passed|failed|skipped|errors?|deselected)\b.* in [\d.]+s", line):
                counts = re.sub(r" in [\d.]+s.*", "", line.strip("= \n"))
    return process.returncode, "no tests" if process.returncode == NO_TESTS else counts


def main() -> int:
    """Run the chosen phases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--only", choices=PHASES, help="one phase alone")
    options, extra = parser.parse_known_args()
    started = time.monotonic()
    names = [options.only] if options.only else ["quick", "e2e"]
    results = {name: run_phase(name, options.jobs, extra) for name in names}
    codes = {code for code, _ in results.values()}
    failed = bool(codes - {0, NO_TESTS}) or codes == {NO_TESTS}
    summary = "; ".join(f"{name}: {counts}" for name, (_, counts) in results.items())
    print(f"\n{'FAILED' if failed else 'OK'} in {time.monotonic() - started:.0f} s. {summary}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
