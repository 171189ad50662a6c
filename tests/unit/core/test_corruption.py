"""What a job says of its replicas: a part is taken out only when it was wrong twice and another one right."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.core.builders import DEMO, Told, kinds, running, sealed

from medevac.core import events as ev
from medevac.core.actions import Isolate


def seen(
    outcome: ev.Corruption, at: float, *, attempt: int = 1, gpu: str = "g00", job: str = "job"
) -> ev.CorruptionSeen:
    return ev.CorruptionSeen(
        at=at, job=job, attempt=attempt, outcome=outcome, step=12, since=6, tensors=("w",), rank=0, node="n0", gpu=gpu
    )


def left(told: Told, at: float) -> Told:
    """Rank 0 has left with 84, and its job goes on elsewhere."""
    exits = (ev.RankExit(rank=0, code=84), ev.RankExit(rank=1, code=85))
    told.tell(ev.AttemptEnded(at=at, job="job", attempt=1, code=84, exits=exits))
    told.tell(ev.TimePassed(at=at + 60))
    told.settle(at + 61)
    for step in sorted(told.view.jobs["job"].checkpoints):
        told.tell(ev.CheckpointVerified(at=at + 62, job="job", step=step, ok=True))
    ranks = told.view.jobs["job"].ranks
    told.tell(ev.AttemptStarted(at=at + 63, job="job", attempt=2, ranks=ranks))
    return told


@pytest.mark.parametrize("outcome", ["found", "again", "transient", "software", "unclear"])
def test_short_of_hardware_nothing_is_taken_out(outcome: ev.Corruption) -> None:
    told = running(Told())
    decision = told.tell(seen(outcome, 5.0))
    assert [(f.rule, f.severity, f.response) for f in decision.findings] == [("silent-corruption", "warning", "none")]
    assert "rank 0 on n0 (g00), w" in decision.reason
    assert not decision.actions


def test_a_part_that_is_at_fault_is_taken_out_once_the_job_has_left_it() -> None:
    told = running(Told(), ranks=4)
    told.tell(sealed(told, 4, 3.0))
    told.tell(seen("found", 5.0), seen("again", 6.0))
    left(told, 7.0)
    places = told.view.jobs["job"].ranks
    assert "g00" not in {gpu for place in places for gpu in place.gpus}
    decision = told.tell(seen("hardware", 80.0, attempt=2))
    assert kinds(decision.actions) == ["Isolate", "Page"]
    assert isinstance(decision.actions[0], Isolate)
    assert (decision.actions[0].gpu, decision.actions[0].mode) == ("g00", "hard")
    assert told.view.jobs["job"].state == "proving", "the job that runs elsewhere is left alone"


@pytest.mark.parametrize(("job", "gpu"), [("job", "g33"), ("other", "g00"), ("job", "")])
def test_a_job_speaks_of_its_own_parts_only(job: str, gpu: str) -> None:
    told = running(Told(), ranks=4)
    decision = told.tell(replace(seen("hardware", 5.0, gpu=gpu, job=job), node=""))
    assert not decision.actions
    assert all(finding.response == "none" for finding in decision.findings)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_rank_that_was_wrong_again_is_given_another_part_however_its_attempt_ended(stopped: bool) -> None:
    told = running(Told(), ranks=4)
    told.tell(seen("again", 5.0))
    exits = () if stopped else (ev.RankExit(rank=2, code=85),)
    why = "stopped" if stopped else ""
    told.tell(ev.AttemptEnded(at=7.0, job="job", attempt=1, code=137, exits=exits, why=why), ev.TimePassed(at=70.0))
    places = told.view.jobs["job"].ranks
    assert len(places) == 4
    assert "g00" not in {gpu for place in places for gpu in place.gpus}
    assert told.view.device("g00").state == "healthy"


def test_software_is_not_restarted_for_ever() -> None:
    told = running(Told(DEMO))
    told.tell(seen("software", 5.0))
    decision = told.tell(ev.AttemptEnded(at=6.0, job="job", attempt=1, code=85, exits=(ev.RankExit(rank=0, code=85),)))
    assert told.view.jobs["job"].state == "gave-up"
    assert "wrong on every part it runs on: software" in decision.reason
    assert not [action for action in decision.actions if isinstance(action, Isolate)]
