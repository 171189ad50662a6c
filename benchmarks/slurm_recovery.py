"""Faults of a training job on a real Slurm cluster, and how long each recovery takes: medians, maxima, failures.

    python benchmarks/slurm_recovery.py [--json] [--rounds N] [--keep FILE]

Six slurmd on this machine, an all-reduce training over four of them (examples/train.py), `medevac controller` beside
it at its default intervals. Each round has a cluster without drains, a service without a past and a new job. With
--keep what was measured is added to a file, and all that it holds is counted: ten rounds can be had in pieces.

crash_to_running_s             a rank killed, to: Slurm says the job runs again
xid79_to_drained_s             the line in a node's kernel log, to: Slurm says the node is drained or draining
hang_past_limit_to_running_s   the learned hang limit passed, to: Slurm says the job runs again (`limit_s` has it)
fault_to_progress_s            the Xid 79 line, to: a step beyond the best of the first attempt is known
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.slurm.cluster import Cluster, missing
from tests.e2e.slurm.training import Service, Training, gpu_lost

from medevac.core.events import StepReported

LIMIT = re.compile(r"([\d.]+) s in phase \w+, the limit is ([\d.]+) s")
NODES = 6
WARM = 25
"""Steps before the fault: checkpoints are there, and the pace is known."""

FAILED = "failures"
Times = dict[str, float]


def now_when(service: Service, holds: Callable[[], bool], what: str) -> float:
    service.until(holds, what)
    return time.time()


def runs_again(job: Training) -> float:
    def again() -> bool:
        shown = job.cluster.job(job.number)
        return shown["JobState"] == "RUNNING" and shown["Restarts"] == "1"

    return now_when(job.service, again, "running again")


def progress(job: Training) -> float:
    """When a step beyond the first attempt's best was known."""
    job.runs_again()
    best = job.best(1)
    steps = [event for event in job.service.events(StepReported) if event.attempt == 2 and event.step > best]
    return min(event.seen_at for event in steps)


def crash(job: Training) -> Times:
    began = time.time()
    job.kill_rank(2)
    return {"crash_to_running_s": runs_again(job) - began, "crash_to_progress_s": progress(job) - began}


def lost_gpu(job: Training) -> Times:
    node = job.node(1)
    began = time.time()
    gpu_lost(job.cluster, node)
    drained = now_when(
        job.service,
        lambda: job.cluster.call("sinfo", "-h", "-n", node, "-o", "%T").stdout.startswith("drain"),
        "drained",
    )
    return {"xid79_to_drained_s": drained - began, "fault_to_progress_s": progress(job) - began}


def hang(job: Training) -> Times:
    job.stop_rank(3)
    running = runs_again(job)
    for decision in job.service.decisions():
        if found := LIMIT.search(decision.reason):
            took, limit = float(found[1]), float(found[2])
            return {"hang_past_limit_to_running_s": running - (decision.at - (took - limit)), "limit_s": limit}
    raise AssertionError("no hang was seen")


SCENARIOS = {"crash": crash, "xid79": lost_gpu, "hang": hang}


def measure(cluster: Cluster, folder: Path, rounds: int) -> Iterator[Times]:
    """What each scenario of each round took; one that failed says only that."""
    for number in range(rounds):
        for name, scenario in SCENARIOS.items():
            cluster.reset()
            service = Service(cluster, folder / f"{name}{number}")
            try:
                service.start()
                job = Training(service)
                job.reached(WARM)
                yield scenario(job)
            except AssertionError as problem:
                print(f"{name} {number}: {problem}", file=sys.stderr)
                yield {FAILED: 1.0}
            finally:
                service.close()


def summary(measured: Iterable[Times]) -> Iterator[dict[str, object]]:
    """A row for each time, and how many rounds failed."""
    times: dict[str, list[float]] = defaultdict(list)
    for found in measured:
        for key, value in found.items():
            times[key].append(value)
    failed = len(times.pop(FAILED, []))
    for key, values in times.items():
        middle, most = round(statistics.median(values), 2), round(max(values), 2)
        yield {"name": key, "value": middle, "unit": "s", "max": most, "n": len(values)}
    yield {"name": FAILED, "value": failed, "unit": "rounds"}


def kept(path: Path | None, measured: Iterable[Times]) -> list[Times]:
    """What the file holds with what is measured now, each added as it comes."""
    if path is None:
        return list(measured)
    with path.open("a", encoding="utf-8") as out:
        for found in measured:
            out.write(json.dumps(found) + "\n")
            out.flush()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="add to this file, and count all that it holds")
    given = parser.parse_args()
    if gone := missing():
        print(f"slurm_recovery: {', '.join(gone)} missing: install Slurm (make setup says how)", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="medevac-bench-") as name:
        cluster = Cluster(Path(name) / "cluster", nodes=NODES)
        try:
            cluster.start()
            measured = kept(given.keep, measure(cluster, Path(name), given.rounds))
        finally:
            cluster.stop()
    rows = list(summary(measured))
    for row in rows:
        more = f"   max {row['max']:6.2f} s   n {row['n']}" if "max" in row else ""
        print(json.dumps(row) if given.json else f"{row['name']:32} {row['value']:6} {row['unit']}{more}")
    return 1 if rows[-1]["value"] else 0


if __name__ == "__main__":
    sys.exit(main())
