"""A scheduler may start a job by itself: Slurm's own queue, a person's requeue."""

from __future__ import annotations

from tests.unit.core.builders import CLUSTER, DEMO, Told, running

from medevac.core import events as ev


def started(attempt: int, at: float) -> ev.AttemptStarted:
    place = ev.RankPlace(rank=0, node="n0", gpus=("g00",))
    return ev.AttemptStarted(at=at, id=f"job/{attempt}/started", job="job", attempt=attempt, ranks=(place,))


def test_a_job_that_runs_when_it_is_first_seen_is_taken_over_as_it_is() -> None:
    told = Told(DEMO, CLUSTER, ev.JobSubmitted(at=1.0, job="job", ranks=1))
    told.tell(started(4, 1.0))
    job = told.view.jobs["job"]
    assert (job.state, job.attempt, job.gpus()) == ("proving", 4, frozenset({"g00"}))
    told.tell(ev.StepReported(at=2.0, job="job", attempt=4, step=7))
    assert told.view.jobs["job"].state == "running"


def test_a_requeue_that_we_did_not_order_is_the_next_attempt() -> None:
    told = running(Told(DEMO))
    told.tell(ev.AttemptEnded(at=10.0, job="job", attempt=1, code=143, why="requeued"))
    told.tell(started(2, 11.0))
    job = told.view.jobs["job"]
    assert (job.state, job.attempt, job.reached, job.ended) == ("proving", 2, -1, None)


def test_the_start_of_an_attempt_that_ended_changes_nothing_when_it_is_heard_late() -> None:
    told = running(Told(DEMO))
    told.tell(ev.AttemptEnded(at=10.0, job="job", attempt=1, code=1))
    told.tell(started(1, 11.0))
    assert told.view.jobs["job"].state == "backing-off"
