"""A job that makes no progress on a real cluster: suspended by Slurm, or with a rank that hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.training import Service, Training

from medevac.core.actions import StopAttempt
from medevac.core.events import AttemptExamined


@pytest.fixture
def job(wide: Cluster, tmp_path: Path) -> Iterator[Training]:
    service = Service(wide, tmp_path)
    service.start()
    made = Training(service)
    made.reached(25)
    yield made
    service.close()


def seen(job: Training, signature: str) -> list[int | None]:
    """The ranks of which a look found this."""
    looks = job.service.events(AttemptExamined)
    return [clue.rank for look in looks for clue in look.clues if clue.signature == signature]


def test_a_suspended_job_is_left_alone(job: Training) -> None:
    job.cluster.call("scontrol", "suspend", str(job.number))
    job.service.until(lambda: seen(job, "job-suspended"), "seen as suspended")
    job.cluster.call("scontrol", "resume", str(job.number))
    job.reached(job.best(1) + 10)
    assert not [action for action in job.service.actions() if isinstance(action, StopAttempt)]


def test_a_hung_rank_is_found_by_its_silence_and_named(job: Training) -> None:
    job.stop_rank(3)
    job.runs_again()
    assert set(seen(job, "process-silent")) == {3}
    verdicts = [told.verdict for decision in job.service.decisions() for told in decision.diagnoses]
    assert (verdicts[0].symptom, verdicts[0].suspects[0].rank) == ("hang", 3)
    assert verdicts[0].suspects[0].node == job.node(3)
