"""Small questions about a job and what was known of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from medevac.adapters.schedulers.slurm.marks import HoldMark, with_mark
from medevac.adapters.schedulers.slurm.memory import JobMemory, Run
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.adapters.schedulers.slurm.watching import array_of, held_by_a_person, held_by_us
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


OTHERS = JobMemory(name="slurm-17", slurm="17", runs=(replace(RUN, stopping=False),))
STOP = HoldMark(hold="I7", at=1.0, purpose="recovery", by="stop", run=0)


@pytest.mark.parametrize(
    ("job", "persons"),
    [
        (replace(JOB, state="RUNNING", restarts=0), True),  # held while it ran
        (replace(JOB, admin_comment=with_mark("", replace(STOP, theirs=True))), True),
        (replace(JOB, admin_comment=with_mark("", STOP)), False),
        (replace(JOB, admin_comment=with_mark("", STOP), restarts=2), True),  # released by hand, run, held anew
        (replace(JOB, held=False), False),
        (replace(JOB, state="SUSPENDED", restarts=0), False),
    ],
)
def test_whose_hold_it_is(job: SlurmJob, persons: bool) -> None:
    assert held_by_a_person(job, OTHERS) is persons


def test_a_hold_of_our_stop_whose_mark_was_lost_is_not_a_persons() -> None:
    assert not held_by_a_person(JOB, JobMemory(name="slurm-17", slurm="17", runs=(RUN,)))
