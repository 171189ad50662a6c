"""`SlurmScheduler`: the Scheduler port on a Slurm cluster (docs/slurm.md).

Slurm places jobs and runs them; Medevac requeues, holds, excludes nodes and releases. Attempt n is the n-th run of a
Slurm job, counted on from its restart count when it was first seen.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import structlog

from medevac.adapters.schedulers.slurm import optin, watching
from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.drains import Drains
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.marks import standing_mark
from medevac.adapters.schedulers.slurm.memory import JobMemory, Memory
from medevac.adapters.schedulers.slurm.parse import seconds
from medevac.adapters.schedulers.slurm.reboot import Reboots
from medevac.adapters.schedulers.slurm.requests import Requests
from medevac.adapters.schedulers.slurm.restrict import Restrictions
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.starts import Starts
from medevac.adapters.schedulers.slurm.stops import Stops
from medevac.adapters.schedulers.slurm.values import WAITS, JobDetail, SlurmJob
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
from medevac.core.events import AnyEvent, AttemptEnded, AttemptStarted, ClusterSeen, JobPolicy
from medevac.ports.errors import Refused

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
ASKED_ALONE_S = 5.0
"""How long a job that is waited for is asked after by itself; then it is looked for in the list of all."""

log = structlog.get_logger(__name__)


class SlurmScheduler:
    """`ports.scheduler.Scheduler`. `state` is a folder of the controller's, for what Slurm forgets."""

    name = watching.SOURCE

    def __init__(self, commands: Commands, state: Path, site: SlurmSettings | None = None) -> None:
        site = site or SlurmSettings()
        self.commands = commands
        self.site = site
        self.look = Look(commands, site)
        self.memory = Memory(state / "slurm")
        self._drains = Drains(commands, self.look, self.memory, site)
        self._restrictions = Restrictions(commands, self.look, self.memory, site)
        self._reboots = Reboots(self)
        self._stops = Stops(self)
        self._starts = Starts(self)
        self._requests = Requests(self)
        self._warned: set[str] = set()
        self._missed: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._seeing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._left: set[str] = set()

    # --- ports.scheduler.Scheduler ----------------------------------------------------------------------------------

    async def cluster(self) -> ClusterSeen:
        """What slurmctld has forgotten of our changes is put back with it; monitor mode has made none."""
        nodes = await self.look.nodes()
        if self.commands.mode == "act":
            await self._restrictions.again(nodes)
            await self._drains.again(nodes)
        return await self.look.seen(nodes)

    async def observe(self) -> tuple[AnyEvent, ...]:
        """Of each job under care: its `JobSubmitted` when it first runs, then its attempts; an end in Slurm that is to
        stand (scancel, the time limit) comes as an order to stop.
        """
        seen = [await self.see(job) for job in await self.look.jobs() if self._cares(job)]
        gone = sorted(set(self.memory.jobs()) - {memory.name for memory in seen})
        known = [*seen, *[await self._gone(self.memory.jobs()[name]) for name in gone if name not in self._left]]
        return tuple(event for memory in known for event in watching.events(memory))

    async def isolated(self) -> dict[str, str]:
        return await self._drains.out()

    async def isolate(self, action: Isolate) -> None:
        async with self._turns[action.node]:
            await self._drains.add(action)

    async def restrict(self, action: Restrict) -> None:
        async with self._turns[action.node]:
            await self._restrictions.add(action)

    async def repair(self, action: Repair) -> None:
        if action.id in self.memory.nodes().done:
            return
        await self._reboots.mend(action)
        async with self._turns[action.node]:
            await self._restrictions.remove(action)
            await self._drains.mended(action.node)
            self.memory.node_order_done(action.id)

    async def give_back(self, action: GiveBack) -> None:
        async with self._turns[action.node]:
            if action.id not in self.memory.nodes().done:
                await self._restrictions.remove(action)
                await self._drains.remove(action)

    async def start(self, action: StartAttempt) -> AttemptStarted:
        return await self._starts.start(action)

    async def stop(self, action: StopAttempt) -> AttemptEnded | None:
        return await self._stops.stop(action)

    async def request_checkpoint(self, action: RequestCheckpoint) -> None:
        await self._requests.ask(action)

    async def hold(self, action: HoldJob) -> None:
        await (self._stops.hold_waiting(action) if action.array else self._stops.hold(action))

    async def release(self, action: ReleaseJob) -> None:
        await self._starts.release(action)

    async def holds(self) -> dict[str, str]:
        """Orders to hold, and stopped jobs that wait for their next attempt."""
        found: dict[str, str] = {}
        for job in await self.look.jobs(fresh=True):
            mark = standing_mark(job)
            if mark and job.held and not watching.finished(job) and (mark.by == "hold" or job.state in WAITS):
                found[self.name_of(job)] = mark.purpose
        return found

    async def finish(self, action: FinishJob) -> None:
        """A job that is over: what our stop left held waits for a person from now on."""
        await self._stops.finish(action)

    # --- what its parts share ---------------------------------------------------------------------------------------

    def name_of(self, job: SlurmJob) -> str:
        """The job's name in Medevac; one with a number that was another job's gets its submission time with it."""
        name = watching.name_of(job)
        memory = self.memory.jobs().get(name)
        if memory and watching.reused(job, memory):
            return f"{name}.{seconds(job.submit) or 0:.0f}"
        return name

    async def present(self, name: str) -> tuple[SlurmJob, JobMemory]:
        """A job as it is now, taken into memory. Raises `Refused` where there is none."""
        memory = self.memory.jobs().get(name)
        slurm = memory.slurm if memory else name.removeprefix("slurm-")
        job = await self.look.job(slurm) if slurm.replace("_", "").isdigit() else None
        if job is None or self.name_of(job) != name:
            raise Refused(f"job {name}: Slurm has none of that number (any more)")
        return job, await self.see(job)

    async def see(self, job: SlurmJob) -> JobMemory:
        """What is known of a job now; new facts are kept before anyone hears of them, one look at a time."""
        async with self._seeing[job.id]:
            return await self._see(job)

    async def _see(self, job: SlurmJob) -> JobMemory:
        name = self.name_of(job)
        memory = self.memory.jobs().get(name) or JobMemory(name=name, slurm=job.id, submit=job.submit)
        if job.asked < self._asked.get(name, 0.0):
            return memory  # an answer from before what is known already
        self._asked[name] = job.asked
        now = time.time()
        if watching.over(job, memory):
            memory = watching.with_end(memory, job, now)
        if watching.began(job, memory):
            nodes = await self.look.known_nodes()
            ranks = watching.places(job, await self._detail(job), nodes)
            memory = watching.with_start(memory, job, ranks, self.policy(job) or JobPolicy(), now)
            if watching.over(job, memory):
                memory = watching.with_end(memory, job, now)
        if memory.runs:
            self.memory.save(memory)
        self._missed.pop(name, None)
        self._left.discard(name)
        return memory

    async def _gone(self, memory: JobMemory) -> JobMemory:
        """A job that the list does not show (any more): what is known of it is told once, and kept for a while."""
        if not memory.runs or (end := memory.runs[-1].ended):
            self._left.add(memory.name)
            if memory.runs and end and time.time() - end.at > self.site.forget_after_s:
                self.memory.forget(memory.name)
            return memory
        since = self._missed.setdefault(memory.name, time.monotonic())
        if time.monotonic() - since >= self.site.lost_after_s:
            memory = watching.with_loss(memory, await self.look.accounted(memory.slurm), time.time())
            self.memory.save(memory)
        return memory

    def policy(self, job: SlurmJob) -> JobPolicy | None:
        """What the job asks for; None for one that is nobody's business. A comment with mistakes is said once."""
        policy, problems = optin.policy(job, self.site)
        for problem in problems:
            if (key := f"{job.id}: {problem}") not in self._warned and policy is not None:
                self._warned.add(key)
                log.warning("a job's comment has a mistake", job=job.id, problem=problem)
        return policy

    def _cares(self, job: SlurmJob) -> bool:
        """One that ended before this memory began, and jobs in the queue that never ran, are not taken up."""
        if self.name_of(job) in self.memory.jobs():
            return True
        if job.state in WAITS or self.policy(job) is None:
            return False
        return not watching.finished(job) or (seconds(job.end) or 0) >= int(self.memory.nodes().since)

    async def _detail(self, job: SlurmJob) -> JobDetail:
        try:
            return await self.look.detail(job)
        except Refused:
            return JobDetail()

    async def wait_for(self, job: SlurmJob, holds: Callable[[SlurmJob], bool], timeout_s: float) -> SlurmJob:
        """The job as soon as it is as wished, else as it is when the time is up."""
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while not holds(job) and (waited := time.monotonic() - began) < timeout_s:
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE_S)
            if waited < ASKED_ALONE_S:
                job = await self.look.job(job.id) or job
            else:
                job = next((one for one in await self.look.jobs() if one.id == job.id), job)
        return job
