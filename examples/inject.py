"""The faults of the demo, shown the way a cluster shows them: kernel lines, counters, sensors, and wrong memory.

    python examples/inject.py CLUSTER --seed 7 --memory DIR [--checkpoint-dir DIR]

It is a program apart: it writes into the node folders of CLUSTER what a node would write there and corrupts the
mapped parameters of the GPU that fails; it tells nobody. With `--checkpoint-dir` it begins when that folder has its
second checkpoint, else at once. The other options must be those that the cluster was made with.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from medevac.core.seal import SEAL, step_of
from medevac.sim.cluster_folder import ClusterFolder
from medevac.sim.storm import AnyShown, Corruption, Storm

CHECKPOINTS = 2
BAD_WORDS = 64
"""So many 32-bit words lie in the bad row."""
HOLD_SECONDS = 0.5
"""A bad row stays bad: what is written over it in this time is corrupted again."""


def corrupt(memory: Path) -> None:
    """Put NaN where parameters were. A GPU that no process uses has no memory to corrupt."""
    if memory.is_file():
        words = np.memmap(memory, dtype=np.float32, mode="r+")
        start = len(words) // 3
        words[start : start + BAD_WORDS] = np.nan
        words.flush()


def play(shown: Iterable[AnyShown], nodes: ClusterFolder, memory: Path | None) -> None:
    """Show each thing at its time."""
    began = time.time()
    bad: list[Path] = []
    for one in shown:
        time.sleep(max(0.0, began + one.at - time.time()))
        if isinstance(one, Corruption) and memory is not None:
            bad.append(memory / f"{one.gpu}.bin")
            corrupt(bad[-1])
        nodes.show(one, time.time())
    until = time.time() + HOLD_SECONDS
    while bad and time.time() < until:
        time.sleep(0.02)
        for path in bad:
            corrupt(path)


def wait_for_checkpoints(folder: Path, limit_s: float) -> bool:
    """True when the second one stands there, sealed; False when the time is up."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        sealed = [path for path in folder.glob(f"step_*/{SEAL}") if step_of(path.parent.name) is not None]
        if len(sealed) >= CHECKPOINTS:
            return True
        time.sleep(0.05)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=Path, help="folder of the mapped parameters (<GPU UUID>.bin)")
    parser.add_argument("--checkpoint-dir", type=Path, help="begin when the second checkpoint stands here")
    parser.add_argument("--wait-seconds", type=float, default=120.0, help="how long to wait for it")
    parser.add_argument("--no-fault", action="store_true")
    parser.add_argument("--decoy", action="store_true", help="a GPU that the job does not use fails")
    parser.add_argument("--spares", action=argparse.BooleanOptionalAction, help="as the seed has it when left out")
    given = parser.parse_args()
    storm = Storm.plan(given.seed, fault=not given.no_fault, decoy=given.decoy, spares=given.spares)
    missing = [one.node for one in storm.baseline if one.gpu not in _uuids(given.cluster / one.node)]
    if missing:
        print(f"{given.cluster / missing[0]}: not a node of seed {given.seed} with these options", file=sys.stderr)
        return 2
    if given.checkpoint_dir and not wait_for_checkpoints(given.checkpoint_dir, given.wait_seconds):
        print(f"{given.checkpoint_dir}: no {CHECKPOINTS} checkpoints in time", file=sys.stderr)
        return 1
    play(storm.shown, ClusterFolder(given.cluster, storm.nodes), given.memory)
    return 0


def _uuids(node: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in node.glob("gpu*.json"))


if __name__ == "__main__":
    sys.exit(main())
