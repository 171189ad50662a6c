"""Slurm against the contract of all schedulers, on a real cluster."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace
from tests.e2e.slurm.cluster import Cluster

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler, SlurmSettings
from medevac.core.actions import (
    FinishJob,
    GiveBack,
    HoldJob,
    Isolate,
    ReleaseJob,
    Repair,
    RequestCheckpoint,
    Restrict,
    StartAttempt,
    StopAttempt,
)
from medevac.core.events import AnyEvent, AttemptEnded, ClusterSeen, JobSubmitted
from medevac.testing.scheduler_contract import SchedulerContract, SchedulerWorld, ended, start, stop

# A job that leaves when it finds a file with the code to leave with.
SCRIPT = """
door={doors}/$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}
srun bash -c "trap : USR1; while [ ! -e $door ]; do sleep 0.05; done; exit \\$(cat $door)"
"""


def topology(cluster: Cluster) -> str:
    return "".join(
        f"[node.{node}]\ngpus = ["
        + ", ".join(f'{{ index = {i}, uuid = "GPU-{node}-{i}", pci = "0000:0{i}:00.0" }}' for i in range(cluster.gpus))
        + "]\n"
        for node in cluster.nodes
    )


class Renamed:
    """The contract's job is named `train`; Slurm gives its jobs numbers. It also hears of jobs with `observe`."""

    def __init__(self, slurm: SlurmScheduler, names: dict[str, str]) -> None:
        self.slurm = slurm
        self.names = names
        self.name = slurm.name

    def _to(self, action: Any) -> Any:
        return replace(action, job=self.names.get(action.job, action.job))

    def _from(self, event: Any) -> Any:
        back = {there: here for here, there in self.names.items()}
        return replace(event, job=back.get(event.job, event.job))

    async def cluster(self) -> ClusterSeen:
        return await self.slurm.cluster()

    async def observe(self) -> tuple[AnyEvent, ...]:
        return tuple(self._from(event) for event in await self.slurm.observe() if not isinstance(event, JobSubmitted))

    async def isolated(self) -> dict[str, str]:
        return await self.slurm.isolated()

    async def isolate(self, action: Isolate) -> None:
        await self.slurm.isolate(action)

    async def restrict(self, action: Restrict) -> None:
        await self.slurm.restrict(action)

    async def repair(self, action: Repair) -> None:
        await self.slurm.repair(action)

    async def give_back(self, action: GiveBack) -> None:
        await self.slurm.give_back(action)

    async def start(self, action: StartAttempt) -> AnyEvent:
        started: AnyEvent = self._from(await self.slurm.start(self._to(action)))
        return started

    async def stop(self, action: StopAttempt) -> AnyEvent | None:
        over = await self.slurm.stop(self._to(action))
        return self._from(over) if over else None

    async def request_checkpoint(self, action: RequestCheckpoint) -> None:
        await self.slurm.request_checkpoint(self._to(action))

    async def hold(self, action: HoldJob) -> None:
        await self.slurm.hold(self._to(action))

    async def release(self, action: ReleaseJob) -> None:
        await self.slurm.release(self._to(action))

    async def finish(self, action: FinishJob) -> None:
        await self.slurm.finish(self._to(action))

    async def holds(self) -> dict[str, str]:
        back = {there: here for here, there in self.names.items()}
        return {back.get(job, job): purpose for job, purpose in (await self.slurm.holds()).items()}


class OnSlurm:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.slurm = cluster
        self.folder = folder
        self.names: dict[str, str] = {}
        (folder / "doors").mkdir()
        (folder / "topology.toml").write_text(topology(cluster))

    def scheduler(self) -> Renamed:
        site = SlurmSettings(topology=str(self.folder / "topology.toml"))
        commands = Commands(conf=str(self.slurm.conf))
        return Renamed(SlurmScheduler(commands, self.folder / "state", site), self.names)

    async def submit(self, job: str, ranks: int) -> None:
        """In the queue, for tomorrow: nobody holds it, and it does not run by itself."""
        number = self.slurm.submit(
            SCRIPT.format(doors=self.folder / "doors"),
            f"-N{ranks}", "--gres=gpu:1", "--begin=now+1day", "--requeue", '--comment={"medevac": {}}',
        )  # fmt: skip
        self.names[job] = f"slurm-{number}"

    def number(self, job: str) -> str:
        return self.names[job].removeprefix("slurm-")

    async def end(self, job: str, attempt: int, code: int) -> None:
        door = self.folder / "doors" / f"{self.number(job)}.{attempt - 1}"
        staged = door.with_suffix(".new")
        staged.write_text(str(code))
        staged.rename(door)

    async def freeze(self, job: str, attempt: int) -> None:
        for process in self.slurm.processes():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == self.number(job) and "slurmstepd" not in process.name():
                    process.suspend()


class TestSlurmScheduler(SchedulerContract):
    @pytest.fixture
    def world(self, slurm: Cluster, tmp_path: Path) -> OnSlurm:
        return OnSlurm(slurm, tmp_path)

    # Slurm tells one exit of the whole job; which rank died first stands in the job's output.

    async def test_the_end_tells_the_first_failure(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.end("train", 1, 7)
        over = await ended(world)
        assert (over.code, over.why, over.exits) == (7, "", ())

    async def test_an_end_without_failure(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.end("train", 1, 0)
        over = await ended(world)
        assert (over.code, over.why, over.exits) == (0, "", ())
        assert isinstance(over, AttemptEnded)
        assert await world.scheduler().stop(stop()) == over
