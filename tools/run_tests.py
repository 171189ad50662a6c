"""Run the tests in phases, the next one also after a failure, and end with one line that sums them up.

quick: what starts no processes; e2e: what does; slurm: what needs a Slurm cluster, one after the other; soak: the long
ones, only when asked for. End-to-end tests that failed are run once more, alone: a machine that was too busy for them
is told from a defect, and the summary names what passed only then. Exit code 1 if any phase failed or none found a
test.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass

NO_TESTS = 5
"""pytest's exit code where it collected none."""
SLURM = "tests/e2e/slurm"


@dataclass(frozen=True)
class Phase:
    """A part of the tests: which, where, whether side by side, and whether failures get a second try."""

    marks: str
    where: tuple[str, ...] = ()
    parallel: bool = True
    again: bool = False


PHASES = {
    "quick": Phase("not e2e and not soak"),
    "e2e": Phase("e2e and not soak", ("--ignore", SLURM), again=True),
    "slurm": Phase("e2e and not soak", (SLURM,), parallel=False, again=True),
    "soak": Phase("soak", ("--timeout", "14400"), parallel=False),
}


def run(name: str, jobs: int, extra: list[str]) -> tuple[int, str]:
    """Run one phase; pytest's exit code and its closing counts."""
    phase = PHASES[name]
    code, counts = pytest(name, phase, jobs if phase.parallel else 1, extra)
    if code != 1 or not phase.again:
        return code, counts
    code, second = pytest(
        f"{name}, what failed once more", phase, 1, ["--last-failed", "--last-failed-no-failures=none"]
    )
    return (0 if code == NO_TESTS else code), f"{counts} (second try, alone: {second})"


def pytest(title: str, phase: Phase, jobs: int, extra: list[str]) -> tuple[int, str]:
    """Its output passed on as it comes."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", phase.marks, *phase.where, *extra]
    if jobs > 1:
        command += ["-n", str(jobs), "--dist", "loadgroup"]
    print(f"== {title}: {' '.join(command[1:])}", flush=True)
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
    parser.add_argument("--only", choices=PHASES, action="append", help="these phases alone")
    options, extra = parser.parse_known_args()
    started = time.monotonic()
    results = {name: run(name, options.jobs, extra) for name in options.only or ["quick", "e2e", "slurm"]}
    codes = {code for code, _ in results.values()}
    failed = bool(codes - {0, NO_TESTS}) or codes == {NO_TESTS}
    summary = "; ".join(f"{name}: {counts}" for name, (_, counts) in results.items())
    print(f"\n{'FAILED' if failed else 'OK'} in {time.monotonic() - started:.0f} s. {summary}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
