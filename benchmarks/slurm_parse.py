"""A snapshot of a large Slurm cluster, parsed: 20,000 jobs of squeue and 5,000 nodes of scontrol.

    python benchmarks/slurm_parse.py [--json] [--jobs N] [--nodes N]

The lines have the lengths and contents of a real cluster's (22.05): array tasks, long node lists, comments in JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from medevac.adapters.schedulers.slurm import parse

MARK = "0b5f2c1d"
ROUNDS = 5

NODE = (
    "NodeName=gpu{n:04d} Arch=x86_64 CoresPerSocket=32 CPUAlloc=128 CPUEfctv=128 CPUTot=128 CPULoad=97.21 "
    "AvailableFeatures=h100,ib,rack{rack} ActiveFeatures=h100,ib,rack{rack} Gres=gpu:h100:8(S:0-1) "
    "NodeAddr=gpu{n:04d} NodeHostName=gpu{n:04d} Version=22.05.8 OS=Linux 5.15.0-91-generic #101-Ubuntu SMP  "
    "RealMemory=2063000 AllocMem=1835008 FreeMem=1203321 Sockets=2 Boards=1 State={state} ThreadsPerCore=2 TmpDisk=0 "
    "Weight=10 Owner=N/A MCS_label=N/A Partitions=train,debug  BootTime=2026-11-01T22:20:46 "
    "SlurmdStartTime=2026-11-01T23:07:16 LastBusyTime=2026-11-30T23:07:16 "
    "CfgTRES=cpu=128,mem=2063000M,billing=128,gres/gpu=8 AllocTRES=cpu=128,mem=1835008M,gres/gpu=8 CapWatts=n/a "
    "CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{reason}"
)


def node_lines(count: int) -> str:
    """The text of `scontrol -o show node`."""
    out = " Reason=medevac[hard=gpu0000] incident-17: Xid 79 [root@2026-11-30T23:14:00]"
    lines = (
        NODE.format(
            n=n, rack=n // 16, state="IDLE+DRAIN" if n % 50 == 0 else "MIXED", reason=out if n % 50 == 0 else ""
        )
        for n in range(count)
    )
    return "\n".join(lines) + "\n"


def job_lines(count: int) -> str:
    """The text of `squeue -h -t all -O <squeue_format>`."""
    lines = []
    for n in range(count):
        array = n % 3 == 0
        values = (
            str(n), str(n - n % 100 if array else n), str(n % 100) if array else "N/A", "0",
            ("RUNNING", "PENDING", "COMPLETED", "FAILED")[n % 4], str(n % 2),
            f"gpu[{n % 4000:04d}-{n % 4000 + 15:04d},{n % 4000 + 40:04d}]", "17", "136", "256", "2026-11-30T23:16:02",
            "NONE", "2026-11-30T23:10:00", "1", "1", "4294901750", "None", "train", "physics", "normal",
            f"user{n % 300}",
            "(null)", '{"medevac": {"checkpoint_dir": "/shared/checkpoints/run", "max_restarts": 10}}',
            "/shared/home/user/runs/llama/slurm-%A_%a.out", "/shared/home/user/runs/llama/slurm-%A_%a.err",
            "/shared/home/user/runs/llama", "pretrain phase 2",
        )  # fmt: skip
        words = [f"{value}#{MARK}" for value in values[:-1]]
        lines.append("".join(words) + f"{values[-1]}${MARK}\n")
    return "".join(lines)


def median_s(call: Callable[[], object]) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    args = parser.parse_args()
    jobs, nodes = job_lines(args.jobs), node_lines(args.nodes)
    assert len(parse.squeue(jobs, MARK)) == args.jobs
    assert len(parse.nodes(nodes)) == args.nodes
    jobs_s, nodes_s = median_s(lambda: parse.squeue(jobs, MARK)), median_s(lambda: parse.nodes(nodes))
    results = [
        {"name": "slurm.parse.jobs", "value": round(jobs_s, 3), "unit": "s", "jobs": args.jobs},
        {
            "name": "slurm.parse.nodes",
            "value": round(nodes_s, 3),
            "unit": "s",
            "nodes": args.nodes,
            "bytes": len(nodes),
        },
        {"name": "slurm.parse.snapshot", "value": round(jobs_s + nodes_s, 3), "unit": "s"},
    ]
    for result in results:
        print(json.dumps(result) if args.json else f"{result['name']:24} {result['value']:>8} {result['unit']}")


if __name__ == "__main__":
    main()
