"""How an ended attempt is explained by what it showed itself: its exits, its reports, what was seen before the stop."""

from __future__ import annotations

from tests.unit.core.builders import Told, running, xid

from medevac.core import events as ev
from medevac.core.actions import StopAttempt
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


def test_a_hung_attempt_is_examined_first_and_names_the_stopped_rank() -> None:
    told = trains(running(Told(), ranks=4))
    stop = told.tell(ev.TimePassed(at=(told.view.deadline() or 0.0) + 0.1)).actions[0]
    assert isinstance(stop, StopAttempt)
    assert stop.examine
    seen = Clue(signature="process-stopped", role="symptom", symptom="hang", text="is stopped", rank=1, node="n0")
    told.tell(ev.AttemptExamined(at=told.view.now, job="job", attempt=1, clues=(seen,)))
    said = ended(told, code=137, why="stopped")
    assert (said.symptom, said.suspects[0].rank, said.suspects[0].node) == ("hang", 1, "n0")


def test_a_hung_attempt_without_any_sight_names_who_reported_least() -> None:
    told = trains(running(Told(), ranks=4))
    told.tell(*(ev.StepReported(at=21.0, job="job", attempt=1, step=20, rank=rank) for rank in (0, 1, 3)))
    told.tell(ev.TimePassed(at=(told.view.deadline() or 0.0) + 0.1))
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
