"""Ending a run so that the job stays: mark, kill, requeue and hold. And holding by order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from medevac.adapters.schedulers.slurm import pointers, watching
from medevac.adapters.schedulers.slurm.marks import HoldMark, standing_mark, with_mark
from medevac.adapters.schedulers.slurm.memory import JobMemory
from medevac.adapters.schedulers.slurm.values import RUNS, WAITS, SlurmJob
from medevac.core.actions import FinishJob, HoldJob, StopAttempt
from medevac.core.events import AttemptEnded
from medevac.ports.errors import OutcomeUnknown, Refused, Unsupported

if TYPE_CHECKING:
    from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler


class Stops:
    """The mark stands before the hold, so that the watchdog knows whose it is whatever dies in between."""

    def __init__(self, slurm: SlurmScheduler) -> None:
        self._slurm = slurm
        self._run = slurm.commands.run

    async def stop(self, action: StopAttempt) -> AttemptEnded | None:
        """Slurm's own SIGTERM and KillWait where the order gives a grace, SIGKILL at once where it gives none."""
        known = self._slurm.memory.jobs().get(action.job)
        run = known.run(action.attempt) if known else None
        if run and run.ended:
            return run.ended
        job, memory = await self._slurm.present(action.job)
        run = memory.run(action.attempt)
        if run is None or run.ended:
            return run.ended if run else None
        if not job.requeue or not job.batch:
            raise Unsupported(f"job {job.id} may not be requeued (--no-requeue, or not a batch job): it is not stopped")
        following = action.attempt + 1
        pointers.tell(self._slurm, job, memory, following, action.resume_from)
        try:
            await self._mark(
                job, action.cause or action.id, action.hold, "stop", theirs=watching.held_by_a_person(job, memory)
            )
        except Refused:
            if (await self._now(job)).state in RUNS:
                raise
            return await self._over(job, action)  # it is ending by itself: that end is told
        memory = self._slurm.memory.jobs()[memory.name]
        run = memory.run(action.attempt) or run
        if run.ended:
            return run.ended  # seen meanwhile
        memory = replace(memory, resume={**memory.resume, following: action.resume_from})
        self._slurm.memory.save(memory.with_run(replace(run, stopping=True)))
        await self._end(job, action)
        return await self._over(job, action)

    async def _end(self, job: SlurmJob, action: StopAttempt) -> None:
        if action.grace_s <= 0:
            await self._kill(job)
        await self._run("scontrol", "requeuehold", job.id)

    async def _kill(self, job: SlurmJob) -> None:
        """SIGKILL to each step and to the batch script; to the job as a whole it would be a cancellation."""
        steps = await self._slurm.look.steps(job)
        numbered = [step for step in steps if step.rpartition(".")[2].isdigit()]
        for words in ((*numbered,), ("-b", job.id)):
            if words:
                try:
                    await self._run("scancel", "--signal=KILL", *words)
                except Refused:
                    continue  # gone meanwhile

    async def _over(self, job: SlurmJob, action: StopAttempt) -> AttemptEnded:
        def settled(now: SlurmJob) -> bool:
            return now.state in WAITS or watching.finished(now)

        now = await self._slurm.wait_for(await self._now(job), settled, self._slurm.site.stop_wait_s)
        memory = await self._slurm.see(now)
        run = memory.run(action.attempt)
        if run is None or run.ended is None:
            raise OutcomeUnknown(f"job {job.id}: requeued, and still {now.state}")
        if now.held and now.state in WAITS and not standing_mark(now) and watching.held_by_us(now, memory):
            await self._mark(now, action.cause or action.id, action.hold, "stop")
        return run.ended

    async def hold(self, action: HoldJob) -> None:
        """What runs goes on; what has ended goes back into the queue first, since Slurm writes on no ended job."""
        job, memory = await self._slurm.present(action.job)
        if action.id in memory.done:
            return
        if watching.finished(job):
            job = await self._requeued(job)
        mark = standing_mark(job)
        if mark is None or mark.by == "stop" or (mark.purpose, action.purpose) == ("recovery", "person"):
            await self._mark(
                job, action.cause or action.id, action.purpose, "hold", theirs=watching.held_by_a_person(job, memory)
            )
        if not job.held:
            await self._run("scontrol", "hold", job.id)
        await self._check(job, held=True)
        self._done(memory, action.id)

    async def hold_waiting(self, action: HoldJob) -> None:
        """The tasks of an array that wait, those that never ran as one."""
        for job in await self._waiting(action.job):
            array, _, tasks = job.id.partition("_")
            one = replace(job, id=job.id if tasks.isdigit() else f"{array}_[{tasks.partition('%')[0]}]")
            await self._mark(one, action.cause or action.id, action.purpose, "hold")
            await self._run("scontrol", "hold", one.id)
        if left := await self._waiting(action.job):
            raise OutcomeUnknown(f"array {action.job}: held, and {left[0].id} still waits unheld")

    async def _waiting(self, array: str) -> list[SlurmJob]:
        """Its tasks that nobody holds."""
        jobs = await self._slurm.look.jobs(fresh=True)
        return [job for job in jobs if watching.array_of(job) == array and job.state in WAITS and not job.held]

    async def _requeued(self, job: SlurmJob) -> SlurmJob:
        """Back in the queue, where it waits for two minutes: time enough to mark and hold it."""
        if not job.requeue:
            raise Unsupported(f"job {job.id} has ended and may not be requeued")
        await self._run("scontrol", "requeue", job.id)
        now = await self._slurm.wait_for(await self._now(job), lambda now: now.state in WAITS, 10.0)
        if now.state not in WAITS:
            raise OutcomeUnknown(f"job {job.id}: requeued, and it reads {now.state}")
        return now

    async def finish(self, action: FinishJob) -> None:
        try:
            job, _ = await self._slurm.present(action.job)
        except Refused:
            return
        mark = standing_mark(job)
        if mark and mark.by == "stop" and not watching.finished(job):
            await self._mark(job, mark.hold, "person", "hold", theirs=mark.theirs)

    async def _mark(
        self,
        job: SlurmJob,
        hold: str,
        purpose: Literal["recovery", "person"],
        by: Literal["stop", "hold"],
        *,
        theirs: bool = False,
    ) -> None:
        run = job.restarts if by == "stop" else None
        mark = HoldMark(hold=hold, at=time.time(), purpose=purpose, by=by, theirs=theirs, run=run)
        await self._run("scontrol", "update", f"JobId={job.id}", f"AdminComment={with_mark(job.admin_comment, mark)}")

    async def _check(self, job: SlurmJob, *, held: bool) -> None:
        now = await self._now(job)
        if now.state in WAITS and now.held != held:
            raise OutcomeUnknown(f"job {job.id}: held, and it reads {now.state} {now.reason}")

    async def _now(self, job: SlurmJob) -> SlurmJob:
        return await self._slurm.look.job(job.id) or job

    def _done(self, memory: JobMemory, action: str) -> None:
        latest = self._slurm.memory.jobs().get(memory.name, memory)
        self._slurm.memory.save(latest.with_done(action))
