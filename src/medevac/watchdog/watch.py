"""The watchdog: no job stays held by Medevac's hand when the controller takes too long, or is gone (DESIGN, law 7).

It reads Slurm itself and needs no store. A hold is the controller's where our mark stands in AdminComment; a person's
hold has none, and one of ours that waits for a person says so: both are left alone. What was written before the hold
(excluded nodes, the pointer to the clean checkpoint) stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import structlog

from medevac.adapters.lease import is_gone, read
from medevac.adapters.schedulers.slurm.marks import HoldMark, standing_mark, without_mark
from medevac.adapters.schedulers.slurm.values import WAITS, SlurmJob
from medevac.ports.errors import OutcomeUnknown, PortError, Refused

Run: TypeAlias = Callable[..., Awaitable[str]]
Need: TypeAlias = Literal["", "release", "requeue"]
log = structlog.get_logger(__name__)


class Jobs(Protocol):
    """Slurm's queue, as `adapters.schedulers.slurm.look.Look` reads it."""

    async def jobs(self, *, fresh: bool = False) -> tuple[SlurmJob, ...]: ...

    async def job(self, id_: str) -> SlurmJob | None: ...


def needs(job: SlurmJob, age_s: float, limit_s: float, *, gone: bool) -> Need:
    """What the watchdog owes a job whose mark stands for `age_s`. Pure.

    `requeue`: the controller killed it to run it again, and died before it said so to Slurm.
    """
    mark = standing_mark(job)
    if mark is None or mark.purpose != "recovery" or not (gone or age_s > limit_s):
        return ""
    if job.state in WAITS:
        return "release" if job.held and not mark.theirs else ""
    return "requeue" if mark.by == "stop" and job.state == "FAILED" and job.requeue else ""


class Ages:
    """How long each mark stands: by its own time when it is first seen, counted on by the monotonic clock, so that a
    wall clock that is set neither frees a job early nor keeps it.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._began: dict[tuple[str, str, float], float] = {}

    def of(self, jobs: Iterable[SlurmJob]) -> dict[str, float]:
        """Seconds, by the job's id; jobs that have no mark (any more) are forgotten."""
        wall, now = self._wall(), self._monotonic()
        marks = {(job.id, mark.hold, mark.at): mark for job in jobs if (mark := standing_mark(job))}
        self._began = {key: self._began.get(key, now - max(0.0, wall - mark.at)) for key, mark in marks.items()}
        return {key[0]: now - began for key, began in self._began.items()}


class Watchdog:
    """`lease` is the controller's file; `limit_s` how old a hold may become; `grace_s` how long a lease that ran out
    may still be renewed: a wall clock that is set forward makes a living one look so.
    """

    def __init__(
        self,
        look: Jobs,
        run: Run,
        lease: Path,
        limit_s: float,
        *,
        grace_s: float = 0.0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._run = run
        self._lease = lease
        self._limit_s = limit_s
        self._grace_s = grace_s
        self._wall = wall
        self._monotonic = monotonic
        self._ages = Ages(wall, monotonic)
        self._ran_out: tuple[float, float] | None = None

    async def once(self) -> tuple[str, ...]:
        """Look, and let go what is due; the jobs let go. Raises the errors of `ports.errors` where Slurm is away."""
        gone = self._gone()
        freed = []
        jobs = await self._look.jobs(fresh=True)
        ages = self._ages.of(jobs)
        for job in jobs:
            age = ages.get(job.id, 0.0)
            need = needs(job, age, self._limit_s, gone=gone)
            mark = standing_mark(job)
            if need and mark and await self._let_go(job, mark, need):
                why = "its controller is gone" if gone else f"the limit is {self._limit_s:g} s"
                log.warning("let go", job=job.id, how=need, hold=mark.hold, age_s=round(age, 1), why=why)
                freed.append(job.id)
        return tuple(freed)

    async def forever(self, poll_s: float) -> None:
        """Until it is cancelled; a Slurm that does not answer is asked again."""
        said = False
        while True:
            try:
                await self.once()
                said = False
            except PortError as problem:
                if not said:
                    log.warning("Slurm cannot be asked, tried again", problem=str(problem))
                said = True
            await asyncio.sleep(poll_s)

    def _gone(self) -> bool:
        """Nobody acts: the lease ran out, its process is dead, or the file is missing or unreadable."""
        held = read(self._lease)
        if held is None or not held.expires or (held.process is not None and is_gone(held.process)):
            return True
        if held.expires > self._wall():
            return False
        if self._ran_out is None or self._ran_out[0] != held.expires:
            self._ran_out = (held.expires, self._monotonic())
        return self._monotonic() - self._ran_out[1] >= self._grace_s

    async def _let_go(self, job: SlurmJob, mark: HoldMark, need: Need) -> bool:
        """False where the controller, or a person, was quicker, and where it is tried again: others do not wait."""
        now = await self._look.job(job.id)
        if now is None or now.state != job.state or now.held != job.held or standing_mark(now) != mark:
            return False
        try:
            if need == "requeue":
                await self._run("scontrol", "requeue", job.id)
            with contextlib.suppress(Refused):  # then Slurm lets it wait for two minutes
                await self._run("scontrol", "update", f"JobId={job.id}", "StartTime=now")
            if need == "release":
                await self._run("scontrol", "release", job.id)
            await self._run("scontrol", "update", f"JobId={job.id}", f"AdminComment={without_mark(now.admin_comment)}")
        except (Refused, OutcomeUnknown) as problem:
            log.warning("not let go, tried again", job=job.id, problem=str(problem))
            return False
        return True
