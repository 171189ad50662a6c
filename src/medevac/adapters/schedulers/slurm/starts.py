"""The next run of a job: what it resumes from is written, nodes are excluded, then it is let go at once."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from medevac.adapters.schedulers.slurm import pointers, watching
from medevac.adapters.schedulers.slurm.hostlist import join
from medevac.adapters.schedulers.slurm.marks import HoldMark, hold_mark, standing_mark, without_mark
from medevac.adapters.schedulers.slurm.memory import JobMemory
from medevac.adapters.schedulers.slurm.values import BETWEEN, RUNS, WAITS, SlurmJob
from medevac.core.actions import ReleaseJob, StartAttempt
from medevac.core.events import AttemptStarted, Node
from medevac.ports.errors import NoRoomError, OutcomeUnknown, Refused

if TYPE_CHECKING:
    from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler


class Starts:
    """Slurm chooses the nodes; `StartAttempt.ranks` tells only which ones of the last run are to be left."""

    def __init__(self, slurm: SlurmScheduler) -> None:
        self._slurm = slurm
        self._run = slurm.commands.run

    async def start(self, action: StartAttempt) -> AttemptStarted:
        """Raises `OutcomeUnknown` while it waits in Slurm's queue: what is to be done for it is done."""
        known = self._slurm.memory.jobs().get(action.job)
        run = known.run(action.attempt) if known else None
        if run:
            return run.started
        job, memory = await self._slurm.present(action.job)
        run = memory.run(action.attempt)
        if run:
            return run.started
        if action.id in memory.done and job.state in WAITS and not job.held:
            return await self._started(job, action)  # ordered before: asking again would cost it its place in the queue
        await self._check(job, memory, action)
        memory, excluded = await self._exclusions(job, memory, action)
        pointers.tell(self._slurm, job, memory, action.attempt, action.resume_from)
        if watching.finished(job):
            await self._run("scontrol", "requeue", job.id)
            job = await self._slurm.wait_for(await self._now(job), lambda now: now.state in WAITS, 10.0)
        self._slurm.memory.save(memory)
        await self._run("scontrol", "update", f"JobId={job.id}", f"ExcNodeList={join(excluded)}")
        await self._let_go(job, memory)
        self._slurm.memory.save(self._slurm.memory.jobs()[memory.name].with_done(action.id))
        return await self._started(job, action)

    async def _check(self, job: SlurmJob, memory: JobMemory, action: StartAttempt) -> None:
        mark = standing_mark(job)
        if mark and mark.by == "hold" and job.held:
            raise Refused(f"job {job.id} is held ({mark.purpose}); release it first")
        if job.state in WAITS and watching.held_by_a_person(job, memory):
            raise Refused(f"job {job.id} is held by a person or by Slurm ({job.reason}); scontrol release {job.id}")
        if memory.runs and memory.runs[-1].ended is None:
            raise Refused(f"job {job.id}: attempt {memory.runs[-1].started.attempt} still runs; stop it first")
        if not action.ranks:
            raise Refused(f"job {job.id}: attempt {action.attempt} has no places to run at")
        if memory.order and memory.runs[-1].ended and watching.finished(job):
            raise Refused(f"job {job.id}: {memory.order.why}; a person requeues it, or nobody")
        _check_places(action, await self._slurm.look.known_nodes(), await self._slurm.isolated())

    async def _exclusions(self, job: SlurmJob, memory: JobMemory, action: StartAttempt) -> tuple[JobMemory, set[str]]:
        """The user's own exclusions, and ours that have not expired. Raises `Refused` where too little is left."""
        now = time.time()
        fresh = {node: at for node, at in memory.excluded.items() if now - at < self._slurm.site.exclude_for_s}
        ours = {**fresh, **dict.fromkeys(_left(memory, action), now)}
        standing = set((await self._slurm.look.detail(job)).excluded)
        excluded = (standing - set(memory.excluded)) | set(ours)
        await self._enough(job, excluded)
        resume = {**memory.resume, action.attempt: action.resume_from}
        return replace(memory, excluded=ours, resume=resume), excluded

    async def _enough(self, job: SlurmJob, excluded: set[str]) -> None:
        nodes = (await self._slurm.look.nodes()).values()
        left = [node for node in nodes if node.usable and node.name not in excluded and _in(node.partitions, job)]
        if len(left) < job.node_count:
            raise NoRoomError(
                f"job {job.id} needs {job.node_count} nodes; {len(left)} are in service for it in {job.partition}"
            )

    async def _let_go(self, job: SlurmJob, memory: JobMemory) -> None:
        """A node refuses a job that was killed on it in the same second."""
        last = memory.runs[-1].ended if memory.runs else None
        if last and (wait := math.floor(last.at) + 1.05 - time.time()) > 0:
            await asyncio.sleep(min(wait, 2.0))
        await self._run("scontrol", "update", f"JobId={job.id}", "StartTime=now")
        if job.held:
            await self._run("scontrol", "release", job.id)
        if hold_mark(job.admin_comment):
            await self._unmark(job)

    async def _started(self, job: SlurmJob, action: StartAttempt) -> AttemptStarted:
        def settled(now: SlurmJob) -> bool:
            return now.state in RUNS or watching.finished(now) or now.held

        end = time.monotonic() + self._slurm.site.start_wait_s
        while (left := end - time.monotonic()) > 0:
            now = await self._slurm.wait_for(await self._now(job), settled, left)
            run = (await self._slurm.see(now)).run(action.attempt)
            if run:
                return run.started
            if now.held and "launch failed" in now.reason:
                await self._run("scontrol", "release", job.id)
                await asyncio.sleep(1.0)
            elif now.state not in BETWEEN | WAITS or now.held:
                break
        raise OutcomeUnknown(f"job {job.id} waits in Slurm's queue: {(await self._now(job)).reason}")

    async def release(self, action: ReleaseJob) -> None:
        """Take our hold off and our mark; a person's hold that stood there before stays."""
        job, memory = await self._slurm.present(action.job)
        if action.id in memory.done:
            return
        mark = hold_mark(job.admin_comment)
        if mark and not watching.finished(job):
            await self._release(job, mark)
        latest = self._slurm.memory.jobs().get(memory.name, memory)
        self._slurm.memory.save(latest.with_done(action.id))

    async def _release(self, job: SlurmJob, mark: HoldMark) -> None:
        if not mark.theirs:
            await self._run("scontrol", "release", job.id)
        await self._unmark(job)
        now = await self._now(job)
        if hold_mark(now.admin_comment):
            raise OutcomeUnknown(f"job {job.id}: released, and its mark still stands")

    async def _unmark(self, job: SlurmJob) -> None:
        """A job that has ended meanwhile cannot be written on, and its mark says nothing any more."""
        try:
            await self._run("scontrol", "update", f"JobId={job.id}", f"AdminComment={without_mark(job.admin_comment)}")
        except Refused:
            if not watching.finished(await self._now(job)):
                raise

    async def _now(self, job: SlurmJob) -> SlurmJob:
        return await self._slurm.look.job(job.id) or job


def _left(memory: JobMemory, action: StartAttempt) -> set[str]:
    """Nodes of the last run of which a GPU (or the whole) is in none of the new places."""
    if not memory.runs:
        return set()
    kept = {(place.node, place.gpus) for place in action.ranks}
    return {place.node for place in memory.runs[-1].started.ranks if (place.node, place.gpus) not in kept}


def _in(partitions: tuple[str, ...], job: SlurmJob) -> bool:
    return bool(set(partitions) & set(job.partition.split(",")))


def _check_places(action: StartAttempt, nodes: dict[str, Node], out: dict[str, str]) -> None:
    for place in action.ranks:
        node = nodes.get(place.node)
        if node is None or not set(place.gpus) <= {gpu.uuid for gpu in node.gpus}:
            raise Refused(f"rank {place.rank}: node {place.node} with {', '.join(place.gpus)} does not exist")
        if taken := [target for target in (place.node, *place.gpus) if target in out]:
            raise Refused(f"rank {place.rank}: {taken[0]} is isolated ({out[taken[0]]})")
