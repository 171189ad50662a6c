"""What a job's end leads to, where the tables alone do not say it."""

from __future__ import annotations

from tests.unit.core.builders import CLUSTER, DEMO, Told, kinds, running, xid

from medevac.core import events as ev
from medevac.core.actions import FinishJob


def end(told: Told, at: float, code: int = 1, why: str = "") -> list[object]:
    attempt = told.view.jobs["job"].attempt
    return list(told.tell(ev.AttemptEnded(at=at, job="job", attempt=attempt, code=code, why=why)).actions)


def again(told: Told) -> None:
    """Until its next attempt runs."""
    for _ in range(8):
        if told.view.jobs["job"].state in {"proving", "running"}:
            return
        at = max(told.view.deadline() or 0.0, told.view.now)
        told.tell(ev.TimePassed(at=at))
        job = told.view.jobs["job"]
        if job.state == "starting":
            told.tell(ev.AttemptStarted(at=at, job="job", attempt=job.attempt, ranks=job.ranks))
            told.settle(at)


def give_up(told: Told) -> list[object]:
    actions: list[object] = []
    for at in range(10, 14):
        actions = end(told, float(at * 100))
        again(told)
    return actions


def test_three_attempts_in_a_row_without_progress_are_enough() -> None:
    told = running(Told(DEMO))
    assert kinds(give_up(told)) == ["Page", "FinishJob"]
    assert told.view.jobs["job"].state == "gave-up"
    assert told.view.jobs["job"].attempt == 4


def test_a_person_who_releases_it_gives_it_all_its_attempts_again() -> None:
    told = running(Told(DEMO))
    give_up(told)
    told.tell(ev.OrderGiven(at=2000.0, what="release", who="alex", target="job"))
    again(told)
    end(told, 3000.0)
    assert told.view.jobs["job"].state == "backing-off"


def test_who_does_not_leave_in_time_is_stopped_and_not_blamed_for_it() -> None:
    told = running(Told(DEMO))
    told.tell(*(xid(63, "g00", 10.0, row=str(row)) for row in range(11)))
    told.settle(10.1)
    assert told.view.jobs["job"].state == "leaving"
    assert kinds(told.tell(ev.TimePassed(at=told.view.deadline() or 0.0)).actions) == ["StopAttempt"]
    end(told, 80.0, 137, "stopped")
    job = told.view.jobs["job"]
    assert job.why.endswith("it did not leave in time")
    again(told)
    end(told, 90.0)
    assert told.view.jobs["job"].unproven == 1


def test_a_wrong_command_is_not_tried_again() -> None:
    told = Told(DEMO, CLUSTER, ev.JobSubmitted(at=1.0, job="job", ranks=1), ev.TimePassed(at=1.0))
    told.tell(ev.AttemptStarted(at=1.0, job="job", attempt=1))
    page, finish = end(told, 2.0, 127)
    assert kinds([page]) == ["Page"]
    assert isinstance(finish, FinishJob)
    assert finish.code == 127


def test_our_own_kill_is_not_the_code_of_a_job_that_was_given_up() -> None:
    told = running(Told(DEMO))
    codes = []
    for at in (100.0, 200.0):
        told.tell(ev.StepReported(at=at, job="job", attempt=told.view.jobs["job"].attempt, step=5, finite=False))
        codes += [a.code for a in end(told, at + 1, 137, "stopped") if isinstance(a, FinishJob)]
        again(told)
    assert codes == [4]


def test_a_job_that_ended_well_on_a_gpu_in_doubt_did_not_end_well() -> None:
    told = running(Told(DEMO))
    told.tell(xid(48, "g00", 10.0))
    end(told, 10.1, 0)
    assert told.view.jobs["job"].state != "finished"


def test_a_start_that_the_scheduler_refuses_is_no_attempt_without_progress() -> None:
    told = running(Told(DEMO))
    end(told, 100.0)
    for at in range(200, 210):
        told.tell(ev.TimePassed(at=float(at * 10)))
        told.settle(at * 10.0, "refused")
    assert told.view.jobs["job"].unproven == 0
    assert told.view.jobs["job"].restarts == 1
    again(told)
    end(told, 5000.0)
    assert told.view.jobs["job"].state == "backing-off"
