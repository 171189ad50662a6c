"""The schedulers against their contract."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from medevac.adapters.schedulers.local import JobSpec, LocalScheduler
from medevac.adapters.schedulers.local.files import Attempt
from medevac.adapters.schedulers.local.processes import look
from medevac.adapters.schedulers.memory import MemoryScheduler, MemoryWorld
from medevac.core.actions import StopAttempt
from medevac.core.events import Gpu, Node
from medevac.testing.scheduler_contract import LONG_S, SchedulerContract

NODES = tuple(
    Node(
        name=f"node{n}",
        rack="r1",
        gpus=tuple(Gpu(index=i, uuid=f"GPU-{n}{i}", pci=f"0000:{n}{i}:00.0") for i in range(2)),
    )
    for n in (1, 2)
)

TOPOLOGY = "".join(
    f'[node.{node.name}]\nrack = "{node.rack}"\ngpus = ['
    + ", ".join(f'{{ index = {gpu.index}, uuid = "{gpu.uuid}", pci = "{gpu.pci}" }}' for gpu in node.gpus)
    + "]\n"
    for node in NODES
)

# A rank that leaves when it finds a file with the code to leave with.
RANK = """
import os, pathlib, sys, time
door = pathlib.Path(sys.argv[1]) / f"{os.environ['MEDEVAC_ATTEMPT']}.{os.environ['RANK']}"
print("here", flush=True)
while not door.exists():
    time.sleep(0.02)
sys.exit(int(door.read_text()))
"""


class InMemory:
    def __init__(self) -> None:
        self.world = MemoryWorld(NODES)

    def scheduler(self) -> MemoryScheduler:
        return MemoryScheduler(self.world)

    async def submit(self, job: str, ranks: int) -> None:
        await self.scheduler().submit(JobSpec(job=job, command=("train",), ranks=ranks))

    async def end(self, job: str, attempt: int, code: int) -> None:
        self.world.end(job, attempt, (code, 0))

    async def freeze(self, job: str, attempt: int) -> None:
        return


class OnThisMachine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("cluster", "doors", "shm", "checkpoints"):
            (folder / name).mkdir()
        (folder / "cluster" / "topology.toml").write_text(TOPOLOGY)

    def scheduler(self) -> LocalScheduler:
        return LocalScheduler(self.folder / "state", self.folder / "cluster", shm=self.folder / "shm")

    async def submit(self, job: str, ranks: int) -> None:
        command = (sys.executable, "-S", "-c", RANK, str(self.folder / "doors"))
        checkpoints = str(self.folder / "checkpoints")
        await self.scheduler().submit(JobSpec(job=job, command=command, ranks=ranks, checkpoint_dir=checkpoints))

    async def end(self, job: str, attempt: int, code: int) -> None:
        for rank, value in ((0, code), (1, 0)):
            temporary = self.folder / f"door{rank}"
            temporary.write_text(str(value))
            temporary.rename(self.folder / "doors" / f"{attempt}.{rank}")

    async def freeze(self, job: str, attempt: int) -> None:
        keeping = Attempt(self.folder / "state" / "jobs" / job / "attempts" / str(attempt)).keeping
        assert keeping is not None
        for process in (keeping.process, *(rank.process for rank in keeping.ranks)):
            os.kill(process.pid, signal.SIGSTOP)
            async with asyncio.timeout(LONG_S):
                while (now := look(process.pid)) and not now.stopped:
                    await asyncio.sleep(0.01)

    async def clear(self) -> None:
        for attempt in self.folder.glob("state/jobs/*/attempts/*"):
            action = StopAttempt(id="clear", job=attempt.parent.parent.name, attempt=int(attempt.name))
            await self.scheduler().stop(action)


class TestMemoryScheduler(SchedulerContract):
    @pytest.fixture
    def world(self) -> InMemory:
        return InMemory()


class TestLocalScheduler(SchedulerContract):
    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[OnThisMachine]:
        world = OnThisMachine(tmp_path)
        yield world
        await world.clear()
