"""A bad step that the job has dealt with in place is told, and is no failure of it."""

from __future__ import annotations

from tests.unit.core.builders import DEMO, Told, running, sealed

from medevac.core import events as ev
from medevac.core.lineage import newest_clean
from medevac.ports.store import EventRecord
from medevac.report import story


def bad(step: int, handled: str = "") -> ev.StepReported:
    return ev.StepReported(at=float(step), job="job", attempt=1, step=step, rank=2, finite=False, handled=handled)


def test_the_job_goes_on_and_its_checkpoints_stay_clean() -> None:
    told = running(Told(DEMO))
    told.tell(ev.StepReported(at=5.0, job="job", attempt=1, step=12), sealed(told, 10, 6.0))
    decision = told.tell(bad(13, "rolled back to step 10"))
    assert decision.actions == ()
    assert told.view.jobs["job"].state == "running"
    assert newest_clean(told.view.jobs["job"], told.view.doubts) == 10
    told.tell(bad(14))
    assert told.view.jobs["job"].state == "stopping"


def test_the_story_tells_it() -> None:
    told = running(Told(DEMO))
    told.tell(bad(13, "rolled back to step 10"))
    lines = story.build([EventRecord(seq=n, event=event) for n, event in enumerate(told.events, 1)], "job").timeline
    assert "rank 2 found step 13 to be bad; handled in place: rolled back to step 10" in [line.text for line in lines]
