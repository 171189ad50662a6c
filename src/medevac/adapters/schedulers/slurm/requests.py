"""Asking a running attempt to save and leave: through the in-job library's folder, or by a signal."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.core.actions import RequestCheckpoint
from medevac.core.events import JobPolicy
from medevac.ports.errors import Refused, Unavailable, Unsupported

if TYPE_CHECKING:
    from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler

DEFAULT = "USR1"


class Requests:
    """A signal goes to the job's steps (`srun`); where the job's policy names one, to its batch script too."""

    def __init__(self, slurm: SlurmScheduler) -> None:
        self._slurm = slurm
        self._run = slurm.commands.run

    async def ask(self, action: RequestCheckpoint) -> None:
        job, memory = await self._slurm.present(action.job)
        run = memory.run(action.attempt)
        if run is None or run.ended:
            raise Refused(f"job {job.id}: attempt {action.attempt} does not run")
        policy = (memory.submitted.policy if memory.submitted else None) or JobPolicy()
        asked = self._by_file(policy, action)
        if policy.signal or not asked:
            await self._by_signal(job, policy)

    def _by_file(self, policy: JobPolicy, action: RequestCheckpoint) -> bool:
        """Where the job's library writes its heartbeats, it reads requests."""
        if not policy.checkpoint_dir or not (told := Path(policy.checkpoint_dir) / ".medevac").is_dir():
            return False
        path = told / "requests" / f"{action.attempt}.checkpoint"
        try:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        except OSError as problem:
            raise Unavailable(f"{path}: cannot be written: {problem.strerror or problem}") from problem
        return True

    async def _by_signal(self, job: SlurmJob, policy: JobPolicy) -> None:
        number = _signal(job, policy.signal or DEFAULT)
        steps = await self._slurm.look.steps(job)
        if not policy.signal and not any(step.rpartition(".")[2].isdigit() for step in steps):
            raise Unsupported(f"job {job.id} has no steps that take a signal, and its policy names none for its script")
        await self._run("scancel", f"--signal={number}", *(["--full"] if policy.signal else []), job.id)


def _signal(job: SlurmJob, name: str) -> str:
    """Without SIG, as scancel takes it; KILL would be a cancellation."""
    short = name.upper().removeprefix("SIG")
    if f"SIG{short}" not in signal.Signals.__members__ or short in {"KILL", "STOP"}:
        raise Refused(f"job {job.id}: policy key signal: {name!r} cannot be used; write USR1, for example")
    return short
