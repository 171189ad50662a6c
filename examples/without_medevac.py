"""What people do without Medevac: start the ranks, and when it goes wrong start again from the newest checkpoint.

    python examples/without_medevac.py CLUSTER --checkpoint-dir DIR -- python examples/train.py ...

Wrong is a rank that fails, and a loss that stays NaN over several progress lines. After `--restarts` it gives up.
The newest checkpoint is the one that holds the fault, so each restart begins where the last one ended: in NaN.
Ends 0 when the training ended with finite parameters, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

LOSS = re.compile(rb"^step (\d+)/\d+ loss (\S+)")
PATIENCE = 4
GPUS_PER_NODE = 2


class Ranks:
    """The processes of one attempt, one per GPU, on the first two GPUs of each node."""

    def __init__(self, command: list[str], cluster: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
        places = _places(cluster)
        self.processes = [
            subprocess.Popen(
                command,
                env=os.environ | _environment(rank, len(places), port) | place,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=None if rank == 0 else subprocess.DEVNULL,
                start_new_session=True,
            )
            for rank, place in enumerate(places)
        ]

    def watch(self) -> bool:
        """Pass rank 0's output on until it ends or stays NaN for too long. True: it ended by itself, well."""
        output = self.processes[0].stdout
        assert output is not None
        bad = 0
        for line in output:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            match = LOSS.match(line)
            if match:
                bad = bad + 1 if match[2] == b"nan" else 0
            if bad >= PATIENCE:
                print(f"loss is NaN since {PATIENCE} reports: stopped by hand", flush=True)
                return False
        return self.processes[0].wait() == 0

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _places(cluster: Path) -> list[dict[str, str]]:
    topology = tomllib.loads((cluster / "topology.toml").read_text(encoding="utf-8"))
    return [
        {"MEDEVAC_NODE": name, "MEDEVAC_GPU": gpu["uuid"], "MEDEVAC_PCI": gpu["pci"]}
        for name, node in topology["node"].items()
        for gpu in node["gpus"]
        if gpu["index"] < GPUS_PER_NODE
    ]


def _environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    command = [*given.command, "--resume", "newest", "--checkpoint-dir", str(given.checkpoint_dir)]
    for attempt in range(given.restarts + 1):
        if attempt:
            print(f"restart {attempt} of {given.restarts}, from the newest checkpoint", flush=True)
        ranks = Ranks(command, given.cluster)
        try:
            done = ranks.watch()
        finally:
            ranks.end()
        if done:
            return 0 if json.loads((given.checkpoint_dir / "final.json").read_bytes())["finite"] else 1
    print("gave up: no restart is left", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
