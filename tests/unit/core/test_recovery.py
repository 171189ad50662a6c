"""What a job's end leads to, where the tables alone do not say it."""

from __future__ import annotations

from tests.unit.core.builders import CLUSTER, DEMO, Told, changed, kinds, running, sealed, xid

from medevac.core import events as ev
from medevac.core.actions import FinishJob, HoldJob, Page, PointClean, StopAttempt


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
    denied(told, "refused", 5)
    job = told.view.jobs["job"]
    assert (job.unproven, job.restarts, job.attempt) == (0, 1, 1)
    again(told)
    end(told, 5000.0)
    assert told.view.jobs["job"].state == "backing-off"
    assert told.view.jobs["job"].denials == 0


def denied(told: Told, outcome: str, times: int) -> tuple[list[float], list[str]]:
    """The job's next starts come to nothing; how long each wait was, and what was done at the last answer."""
    waits, done = [], []
    for _ in range(times):
        due = told.view.deadline() or 0.0
        waits.append(round(due - told.view.now, 3))
        told.tell(ev.TimePassed(at=due))
        (start,) = [name for name in told.view.pending if "/start/" in name]
        done = kinds(told.tell(ev.ActionSettled(at=due, action=start, outcome=outcome)).actions)  # type: ignore[arg-type]
    return waits, done


def test_a_job_whose_starts_are_refused_again_and_again_waits_for_a_person() -> None:
    told = running(Told(DEMO))
    end(told, 100.0)
    waits, done = denied(told, "refused", 8)
    assert waits == [1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert done == ["HoldJob", "Page"]
    assert told.view.jobs["job"].state == "held"
    assert told.view.deadline() is None
    told.tell(ev.OrderGiven(at=2000.0, what="release", who="alex", target="job"))
    assert denied(told, "refused", 7)[1] == []


def test_where_too_little_is_in_service_it_is_paged_once_and_tried_for_ever() -> None:
    told = running(Told(DEMO))
    end(told, 100.0)
    assert denied(told, "no-room", 1)[1] == ["Page"]
    assert denied(told, "no-room", 20) == ([5.0, 10.0, 20.0, 40.0, *[60.0] * 16], [])
    assert len({name for name in told.view.pending if "/page/" in name}) == 1
    again(told)
    assert told.view.jobs["job"].attempt == 2


def test_without_a_place_no_checkpoint_is_read_and_it_is_paged_once() -> None:
    told = running(Told(DEMO), ranks=12)
    told.tell(sealed(told, 10, 3.0))
    end(told, 5.0)
    for node in range(4):
        told.tell(*(xid(79, f"g{node}{gpu}", 20.0) for gpu in range(3)))
        told.settle(20.5)
    done = [told.tell(ev.TimePassed(at=max(told.view.deadline() or 0.0, told.view.now))).actions for _ in range(4)]
    actions = [action for actions in done for action in actions]
    assert [action.text for action in actions if isinstance(action, Page) and "job job" in action.text] == [
        "job job: no healthy GPU is left to run it on"
    ]
    assert "VerifyCheckpoint" not in kinds(actions)


def test_what_was_paged_while_paused_is_not_paged_again() -> None:
    told = running(Told(DEMO))
    told.tell(ev.OrderGiven(at=5.0, what="pause", who="alex"))
    assert kinds(told.tell(xid(79, "g32", 10.0)).actions) == ["Page"]
    assert kinds(told.tell(ev.OrderGiven(at=20.0, what="resume", who="alex")).actions) == ["Isolate"]


def stops(told: Told) -> list[object]:
    """What a fault of GPU g00 leads to for the job."""
    actions = told.tell(xid(48, "g00", 10.0)).actions
    return [action for action in actions if isinstance(action, PointClean | StopAttempt)]


def test_the_pointer_to_the_clean_checkpoint_is_written_before_the_hold() -> None:
    told = running(Told(DEMO))
    told.tell(sealed(told, 10, 3.0), ev.EccCounted(at=4.0, node="n0", gpu="g00"), sealed(told, 20, 8.0))
    point, stop = stops(told)
    assert isinstance(point, PointClean)
    assert isinstance(stop, StopAttempt)
    assert (point.step, stop.resume_from, stop.hold) == (10, 10, "recovery")


def test_a_pointer_that_stands_is_not_written_again() -> None:
    told = running(Told(DEMO))
    told.tell(sealed(told, 10, 3.0))
    end(told, 5.0)
    told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    told.tell(ev.CheckpointVerified(at=20.0, job="job", step=10, ok=True))
    again(told)
    told.tell(ev.AttemptStarted(at=21.0, job="job", attempt=2, ranks=told.view.jobs["job"].ranks))
    bad = told.tell(ev.StepReported(at=30.0, job="job", attempt=2, step=25, finite=False))
    assert kinds(bad.actions) == ["StopAttempt"]


def test_without_a_clean_checkpoint_the_hold_waits_for_a_person_and_nothing_is_pointed_at() -> None:
    told = running(Told(DEMO))
    told.tell(sealed(told, 10, 3.0))
    point, stop = stops(told)
    assert isinstance(point, PointClean)
    assert isinstance(stop, StopAttempt)
    assert (point.step, stop.resume_from, stop.hold) == (None, None, "person")


def test_where_the_policy_starts_anew_nothing_is_pointed_at_and_nobody_is_waited_for() -> None:
    told = running(Told(changed(DEMO, recovery={"no_clean": "restart"})))
    told.tell(sealed(told, 10, 3.0))
    point, stop = stops(told)
    assert isinstance(point, PointClean)
    assert isinstance(stop, StopAttempt)
    assert (point.step, stop.hold) == (None, "recovery")


# --- arrays -----------------------------------------------------------------------------------------------------------


def tasks(count: int) -> Told:
    """So many tasks of one array, each in its first attempt."""
    told = Told(DEMO, CLUSTER)
    for task in range(count):
        name = f"array_{task}"
        told.tell(ev.JobSubmitted(at=1.0, job=name, ranks=1, array="array"), ev.TimePassed(at=1.0))
        told.tell(ev.AttemptStarted(at=1.0, job=name, attempt=1, ranks=told.view.jobs[name].ranks))
    told.settle(1.0)
    for task in range(count):
        told.tell(ev.StepReported(at=2.0, job=f"array_{task}", attempt=1, step=1))
    return told


def fails(told: Told, task: int, at: float, code: int) -> list[object]:
    name = f"array_{task}"
    ended = ev.AttemptEnded(at=at, job=name, attempt=told.view.jobs[name].attempt, code=code)
    return list(told.tell(ended).actions)


def states(told: Told) -> list[str]:
    return [told.view.jobs[name].state for name in sorted(told.view.jobs)]


def test_a_task_that_fails_alone_is_recovered_alone() -> None:
    told = tasks(4)
    assert [fails(told, task, 10.0 + task, code=task + 3) for task in range(3)] == [[], [], []]
    assert states(told) == ["backing-off"] * 3 + ["running"]


def test_an_array_whose_tasks_fail_alike_is_stopped_with_the_reason() -> None:
    told = tasks(5)
    fails(told, 0, 10.0, 7)
    fails(told, 1, 11.0, 9)
    fails(told, 2, 12.0, 7)
    done = fails(told, 3, 13.0, 7)
    holds = [(action.job, action.array) for action in done if isinstance(action, HoldJob)]
    assert holds == [("array_3", False), ("array", True), ("array_0", False), ("array_2", False)]
    (page,) = [action for action in done if isinstance(action, Page)]
    assert "3 of 5 tasks of array that ran failed alike (exit code 7)" in page.text
    assert states(told) == ["held", "backing-off", "held", "held", "running"]


def test_a_stopped_array_pages_again_only_for_a_task_that_a_person_let_go_on() -> None:
    told = tasks(5)
    for task in range(3):
        fails(told, task, 10.0, 7)
    assert kinds(fails(told, 3, 20.0, 7)) == ["HoldJob"]
    told.tell(ev.OrderGiven(at=30.0, what="release", who="alex", target="array_0"), ev.TimePassed(at=31.0))
    told.tell(ev.AttemptStarted(at=32.0, job="array_0", attempt=2, ranks=told.view.jobs["array_0"].ranks))
    assert kinds(fails(told, 0, 40.0, 7)) == ["HoldJob", "HoldJob", "Page"]


def test_a_task_that_got_past_its_failure_counts_no_more() -> None:
    told = tasks(4)
    fails(told, 0, 10.0, 7)
    told.tell(ev.TimePassed(at=20.0))
    told.tell(ev.AttemptStarted(at=20.0, job="array_0", attempt=2, ranks=told.view.jobs["array_0"].ranks))
    told.tell(ev.StepReported(at=21.0, job="array_0", attempt=2, step=5))
    fails(told, 1, 30.0, 7)
    assert fails(told, 2, 31.0, 7) == []
