"""Small questions about a job and what was known of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from medevac.adapters.schedulers.slurm.memory import JobMemory, Run
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.adapters.schedulers.slurm.watching import array_of, held_by_us
from medevac.core.events import AttemptStarted

JOB = SlurmJob(id="17", number="17", state="PENDING", restarts=1, held=True, reason="job requeued in held state")
RUN = Run(restarts=0, started=AttemptStarted(at=1.0, job="slurm-17", attempt=1), stopping=True)


@pytest.mark.parametrize(("id_", "array"), [("17", ""), ("12_3", "slurm-12"), ("12_3-9%2", "slurm-12")])
def test_a_task_names_its_array(id_: str, array: str) -> None:
    assert array_of(replace(JOB, id=id_)) == array


def test_a_hold_without_its_mark_is_ours_only_after_our_stop() -> None:
    stopped = JobMemory(name="slurm-17", slurm="17", runs=(RUN,))
    assert held_by_us(JOB, stopped)
    assert not held_by_us(replace(JOB, reason="JobHeldUser"), stopped)
    assert not held_by_us(JOB, JobMemory(name="slurm-17", slurm="17", runs=(replace(RUN, stopping=False),)))
    assert not held_by_us(JOB, JobMemory(name="slurm-17", slurm="17"))
