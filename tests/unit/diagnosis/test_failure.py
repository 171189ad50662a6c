"""How an ended attempt is explained by what it showed itself: its exits, its reports, what was seen before the stop."""

from __future__ import annotations

import pytest
from tests.unit.core.builders import DEMO, Told, changed, running, xid

from medevac.core import events as ev
from medevac.core.actions import ExamineAttempt, StopAttempt
from medevac.core.decision import Decision
from medevac.core.diagnose_case import Clue, Diagnosis
from medevac.report.words import diagnosis


def verdict(told: Told) -> Diagnosis:
    return told.decisions[-1].diagnoses[0].verdict


def ended(told: Told, *exits: ev.RankExit, code: int = 1, why: str = "") -> Diagnosis:
    told.tell(ev.AttemptEnded(at=told.view.now + 1, job="job", attempt=1, code=code, exits=exits, why=why))
    return verdict(told)


def trains(told: Told, steps: int = 20) -> Told:
    for step in range(2, steps):
        told.tell(*(ev.StepReported(at=float(step), job="job", attempt=1, step=step, rank=rank) for rank in range(4)))
    return told


def test_a_killed_rank_is_named_and_its_end_not_explained_away() -> None:
    told = trains(running(Told(), ranks=4))
    said = ended(told, ev.RankExit(rank=2, code=137, signal=9), ev.RankExit(rank=0, code=1), code=137)
    assert (said.cause, said.symptom, said.suspects[0].rank) == ("unknown", "crash", 2)
    assert said.suspects[0].node == told.view.jobs["job"].ranks[2].node
    assert "signal 9" in said.suspects[0].why


def test_a_rank_that_was_told_to_go_is_no_suspect() -> None:
    told = trains(running(Told(), ranks=4))
    assert ended(told, ev.RankExit(rank=2, code=143, signal=15), code=143).suspects == ()


def test_a_non_finite_report_is_numerical_and_names_the_rank() -> None:
    told = trains(running(Told(), ranks=4))
    told.tell(ev.StepReported(at=30.0, job="job", attempt=1, step=21, rank=3, finite=False))
    told.tell(ev.StepReported(at=30.1, job="job", attempt=1, step=21, rank=0, finite=False))
    said = ended(told, why="stopped")
    assert (said.cause, said.suspects[0].rank) == ("numerical", 3)


def test_numbers_on_a_gpu_with_memory_errors_are_not_blamed() -> None:
    told = trains(running(Told(), ranks=4))
    gpu = told.view.jobs["job"].ranks[3].gpus[0]
    told.tell(ev.StepReported(at=30.0, job="job", attempt=1, step=21, rank=3, finite=False), xid(48, gpu, 30.1))
    said = ended(told, why="stopped")
    assert (said.cause, said.suspects[0].rank) == ("hardware", 3)


def silent(told: Told) -> Decision:
    """Its limit passes."""
    return told.tell(ev.TimePassed(at=(told.view.deadline() or 0.0) + 0.1))


def seen(told: Told, signature: str, rank: int = 1) -> Decision:
    clue = Clue(signature=signature, role="symptom", symptom="hang", text=f"rank {rank} is", rank=rank, node="n0")
    return told.tell(ev.AttemptExamined(at=told.view.now + 0.5, job="job", attempt=1, clues=(clue,)))


def test_a_hang_is_named_and_looked_at_and_stopped_when_confirmed() -> None:
    told = trains(running(Told(), ranks=4))
    named = silent(told)
    assert [(one.rule, one.severity, one.response) for one in named.findings] == [("hang", "warning", "none")]
    assert [type(action) for action in named.actions] == [ExamineAttempt]
    (move,), (stop,) = (said := seen(told, "process-stopped")).moved, said.actions[-1:]
    assert isinstance(stop, StopAttempt)
    assert not stop.examine
    assert (move.trigger.on, move.trigger.blames) == ("hung", told.view.jobs["job"].ranks[1].gpus)
    verdict = ended(told, code=137, why="stopped")
    assert (verdict.symptom, verdict.suspects[0].rank, verdict.suspects[0].node) == ("hang", 1, "n0")


def test_what_any_stall_shows_confirms_nothing() -> None:
    told = trains(running(Told(), ranks=4))
    silent(told)
    assert seen(told, "process-blocked").moved == ()
    assert told.view.jobs["job"].state == "running"
    assert [one.signature for one in told.view.jobs["job"].examined] == ["process-blocked"]
    told.tell(ev.StepReported(at=told.view.now + 1, job="job", attempt=1, step=99))
    assert told.view.jobs["job"].examined == (), "it went on: that is history"


def test_what_is_seen_when_it_goes_on_again_stops_nothing() -> None:
    told = trains(running(Told(), ranks=4))
    silent(told)
    told.tell(ev.StepReported(at=told.view.now + 0.2, job="job", attempt=1, step=99))
    assert seen(told, "process-stopped").moved == ()


def test_a_hang_that_nothing_confirms_is_stopped_when_patience_ends() -> None:
    told = trains(running(Told(), ranks=4))
    limit = told.view.look_deadline(told.view.jobs["job"])
    looks = 0
    while not (last := silent(told)).moved:
        looks += 1
        assert [type(action) for action in last.actions] == [ExamineAttempt]
        assert bool(last.findings) == (looks == 1), "named once"
    assert told.view.now == pytest.approx((limit or 0.0) + 300.0, abs=1.0)
    assert last.actions[-1].examine  # type: ignore[union-attr]
    assert 5 < looks < 25


def test_a_policy_may_act_at_the_limit() -> None:
    told = trains(running(Told(changed(DEMO, hang={"patience_s": 0.0})), ranks=4))
    assert isinstance(silent(told).actions[-1], StopAttempt)


def test_a_hung_attempt_without_any_sight_names_who_reported_least() -> None:
    told = trains(running(Told(), ranks=4))
    told.tell(*(ev.StepReported(at=21.0, job="job", attempt=1, step=20, rank=rank) for rank in (0, 1, 3)))
    while not silent(told).moved:
        assert "behind the others: rank 2" in told.decisions[-1].actions[0].reason
    said = ended(told, code=137, why="stopped")
    assert (said.symptom, [one.rank for one in said.suspects]) == ("hang", [2])


def test_what_was_seen_of_an_attempt_is_not_the_next_ones() -> None:
    told = trains(running(Told(), ranks=4))
    seen = Clue(signature="process-stopped", role="symptom", symptom="hang", rank=1)
    told.tell(ev.AttemptExamined(at=30.0, job="job", attempt=1, clues=(seen,)))
    assert told.view.jobs["job"].examined == (seen,)
    ended(told, ev.RankExit(rank=0, code=1))
    told.tell(ev.AttemptStarted(at=60.0, job="job", attempt=2, ranks=told.view.jobs["job"].ranks))
    assert not told.view.jobs["job"].examined


def test_the_story_names_the_suspect_even_where_the_cause_is_unknown() -> None:
    told = trains(running(Told(), ranks=4))
    said = ended(told, ev.RankExit(rank=2, code=137, signal=9), code=137)
    node = told.view.jobs["job"].ranks[2].node
    assert diagnosis(said) == f"cause unknown, rank 2 on {node}: the first to end: signal 9"


def test_the_story_says_nothing_of_an_end_without_any_sign() -> None:
    told = trains(running(Told(), ranks=4))
    assert diagnosis(ended(told, ev.RankExit(rank=2, code=143, signal=15), code=143)) == ""


def test_a_job_that_goes_back_moves() -> None:
    """An elastic restart inside the attempt: the steps since its checkpoint are done again."""
    told = trains(running(Told(), ranks=4), steps=40)
    for step in range(5, 35):
        at = told.view.now + 2.0
        told.tell(*(ev.StepReported(at=at, job="job", attempt=1, step=step, rank=rank) for rank in range(4)))
        due = told.view.look_deadline(told.view.jobs["job"])
        assert due
        assert due > at + 4
    assert told.view.jobs["job"].reached == 39


def test_a_phase_that_is_told_again_goes_on() -> None:
    told = trains(running(Told(), ranks=4))
    for at in (100.0, 1000.0, 2500.0, 4000.0):
        told.tell(ev.StepReported(at=at, job="job", attempt=1, step=19, phase="load"))
        assert told.view.look_deadline(told.view.jobs["job"]) == at + 1800.0
    told.tell(ev.StepReported(at=4100.0, job="job", attempt=1, step=19, phase="load", rank=3))
    assert told.view.look_deadline(told.view.jobs["job"]) == 5800.0, "rank 0 speaks for the job"


def test_the_same_step_again_is_no_movement() -> None:
    told = trains(running(Told(), ranks=4))
    before = told.view.look_deadline(told.view.jobs["job"])
    told.tell(ev.StepReported(at=told.view.now + 1, job="job", attempt=1, step=19))
    assert told.view.look_deadline(told.view.jobs["job"]) == before


def test_a_suspended_job_is_no_hang_however_long() -> None:
    told = trains(running(Told(), ranks=4))
    assert silent(told).findings
    for _ in range(100):
        clue = Clue(signature="job-suspended", role="symptom", symptom="none", names="none", text="suspended")
        told.tell(ev.AttemptExamined(at=told.view.now + 0.2, job="job", attempt=1, clues=(clue,)))
        said = silent(told)
        assert (said.findings, said.moved) == ((), ())
        assert [type(action) for action in said.actions] == [ExamineAttempt]
    assert told.view.now > 3600
    told.tell(ev.StepReported(at=told.view.now + 100, job="job", attempt=1, step=20))
    while not silent(told).moved:
        pass
    assert any(one.rule == "hang" for decision in told.decisions[-20:] for one in decision.findings), "it hangs now"
