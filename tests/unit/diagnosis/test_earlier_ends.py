"""What earlier ends of a job add to the verdict on the next one."""

from __future__ import annotations

from tests.unit.core.builders import Told, running
from tests.unit.diagnosis.test_failure import ended, trains

from medevac.core import events as ev
from medevac.core.diagnose import diagnose
from medevac.core.diagnose_case import Case, Cause, Clue, Diagnosis, PastEnd

DIED = Clue(signature="ended-first", role="symptom", text="the first to end: signal 9", rank=2, node="n1")
BUG = Clue(
    signature="shape-mismatch", role="root", cause="user-code", weight=80, text="shapes differ", names="none", line=1
)


def case(clue: Clue, *history: PastEnd, step: int = 40) -> Diagnosis:
    return diagnose(Case(clues=(clue,), step=step, history=history, ranks=frozenset({0, 1, 2})))


def end(cause: Cause = "unknown", node: str = "n1", step: int = 10, signature: str = "") -> PastEnd:
    return PastEnd(cause=cause, node=node, step=step, signature=signature)


def test_a_node_that_is_named_again_is_to_be_left_out() -> None:
    assert case(DIED).advice == "restart"
    said = case(DIED, end(), end(node="n7"), end())
    assert (said.cause, said.advice) == ("unknown", "restart-excluding")
    assert said.suspects[0].why.endswith("; named in 3 ends of the job")


def test_another_node_or_the_jobs_own_fault_there_is_no_repetition() -> None:
    for past in (end(node="n7"), end("user-code"), end("preemption")):
        said = case(DIED, past)
        assert said.advice == "restart"
        assert said.suspects == case(DIED).suspects


def test_the_same_step_again_points_at_its_data() -> None:
    said = case(BUG, end("user-code", node="", step=40, signature="shape-mismatch"))
    assert said.advice == "stop"
    assert said.settle.startswith("it ended at step 40 2 times in the same way: the data of that step")


def test_another_step_another_line_or_no_step_is_none() -> None:
    plain = case(BUG)
    for past in (
        end("user-code", step=41, signature="shape-mismatch"),
        end("user-code", step=40, signature="nan-loss"),
    ):
        assert case(BUG, past) == plain
    assert case(BUG, end("user-code", step=0, signature="shape-mismatch"), step=0) == case(BUG, step=0)


def test_an_unknown_end_at_the_same_step_on_other_nodes_is_told() -> None:
    said = case(DIED, end(node="n7", step=40))
    assert (said.cause, said.abstained) == ("unknown", True)
    assert "it ended at step 40 2 times, on other nodes, in the same way" in said.settle


def test_a_running_job_remembers_its_ends() -> None:
    told = trains(running(Told(), ranks=4))
    first = ended(told, ev.RankExit(rank=2, code=137, signal=9), code=137)
    home = first.suspects[0].node
    told.tell(ev.AttemptStarted(at=60.0, job="job", attempt=2, ranks=told.view.jobs["job"].ranks))
    told.tell(ev.StepReported(at=61.0, job="job", attempt=2, step=25))
    told.tell(
        ev.AttemptEnded(at=70.0, job="job", attempt=2, code=137, exits=(ev.RankExit(rank=2, code=137, signal=9),))
    )
    second = told.decisions[-1].diagnoses[0].verdict
    assert (second.suspects[0].node, second.advice) == (home, "restart-excluding")
    assert "named in 2 ends of the job" in second.suspects[0].why
