"""The faults of the demo, shown the way a cluster shows them: kernel lines, counters, sensors, and wrong memory.

    python examples/inject.py CLUSTER --seed 7 --memory DIR [--checkpoint-dir DIR]

It is a program apart: it writes into the node folders of CLUSTER what a node would write there and corrupts the
mapped parameters of the GPU that fails; it tells nobody. With `--checkpoint-dir` it begins when that folder has its
second checkpoint, and the fault strikes right after a later one, of which then nobody can say whether it is sound;
without it all comes at the plan's times. Seed and the options after it must be those of the cluster.
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
WATCH_SECONDS = 10.0
"""A job that saves nothing for so long is not waited for."""
HOLD_SECONDS = 0.5
"""A bad row stays bad: what is written over it in this time is corrupted again."""


def corrupt(memory: Path) -> None:
    """Put NaN where parameters were. A GPU that no process uses has no memory to corrupt."""
    if memory.is_file():
        words = np.memmap(memory, dtype=np.float32, mode="r+")
        start = len(words) // 3
        words[start : start + BAD_WORDS] = np.nan
        words.flush()


class Saves:
    """The checkpoints that the job has sealed so far in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Their steps, in order."""
        found = (step_of(path.parent.name) for path in self._folder.glob(f"step_*/{SEAL}"))
        return sorted(step for step in found if step is not None)

    def wait_for(self, count: int, limit_s: float) -> bool:
        """True when so many stand there; False when the time is up."""
        end = time.monotonic() + limit_s
        while len(self.steps()) < count:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True


def play(shown: Iterable[AnyShown], nodes: ClusterFolder, memory: Path | None, saves: Saves | None) -> None:
    """Show each thing at its time; what follows the fault is as much later as that was."""
    began = time.time()
    bad: list[Path] = []
    for one in shown:
        time.sleep(max(0.0, began + one.at - time.time()))
        if isinstance(one, Corruption) and memory is not None:
            bad.append(memory / f"{one.gpu}.bin")
            if saves is not None:
                saves.wait_for(len(saves.steps()) + 1, WATCH_SECONDS)
                began = time.time() - one.at
            corrupt(bad[-1])
        nodes.show(one, time.time())
    end = time.time() + HOLD_SECONDS
    while bad and time.time() < end:
        time.sleep(0.02)
        for path in bad:
            corrupt(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=Path, help="folder of the mapped parameters (<GPU UUID>.bin)")
    parser.add_argument("--checkpoint-dir", type=Path, help="the job's checkpoints, to choose the moment by")
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
    saves = Saves(given.checkpoint_dir) if given.checkpoint_dir else None
    if saves is not None and not saves.wait_for(CHECKPOINTS, given.wait_seconds):
        print(f"{given.checkpoint_dir}: no {CHECKPOINTS} checkpoints in time", file=sys.stderr)
        return 1
    play(storm.shown, ClusterFolder(given.cluster, storm.nodes), given.memory, saves)
    return 0


def _uuids(node: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in node.glob("gpu*.json"))


if __name__ == "__main__":
    sys.exit(main())
