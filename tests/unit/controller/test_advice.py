"""What a log of monitor mode recommended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.core.builders import CLUSTER, DEMO, Told, running, xid

from medevac.controller.advice import advised
from medevac.core import events as ev
from medevac.ports.store import DecisionRecord, EventRecord, Record

MONITOR = replace(DEMO, mode="monitor")


def recommended(told: Told) -> list[tuple[str, str]]:
    records: list[Record] = [EventRecord(seq=n, event=event) for n, event in enumerate(told.events, 1)]
    records += [DecisionRecord(seq=1000 + n, decision=one) for n, one in enumerate(told.decisions) if not one.empty()]
    return [(one.what, one.subject) for one in advised(records, DEMO)[1]]


def test_what_monitor_mode_held_back_is_recommended() -> None:
    told = running(Told(MONITOR))
    told.tell(xid(79, "g00", 10.0))
    assert recommended(told) == [("drain", "n0"), ("requeue", "job")]


def test_after_an_end_what_act_mode_would_do_is() -> None:
    told = running(Told(MONITOR))
    told.tell(ev.AttemptEnded(at=20.0, job="job", attempt=1, code=1))
    assert recommended(told) == [("requeue", "job")]
    told = Told(MONITOR, CLUSTER, ev.JobSubmitted(at=1.0, job="job", ranks=1), ev.TimePassed(at=1.0))
    told.tell(ev.AttemptStarted(at=1.0, job="job", attempt=1), ev.AttemptEnded(at=2.0, job="job", attempt=1, code=127))
    assert recommended(told) == [("leave", "job")]


@pytest.mark.parametrize(("code", "why"), [(0, ""), (143, "requeued")])
def test_an_end_that_is_none_of_its_own_recommends_nothing(code: int, why: str) -> None:
    told = running(Told(MONITOR))
    told.tell(ev.AttemptEnded(at=20.0, job="job", attempt=1, code=code, why=why))
    assert recommended(told) == []


def test_a_job_that_somebody_runs_again_is_looked_at_again() -> None:
    told = running(Told(MONITOR))
    told.tell(ev.AttemptEnded(at=20.0, job="job", attempt=1, code=1))
    assert told.view.jobs["job"].state == "watched"
    ranks = told.view.jobs["job"].ranks
    told.tell(ev.AttemptStarted(at=30.0, job="job", attempt=2, ranks=ranks), xid(79, "g00", 40.0))
    assert recommended(told) == [("requeue", "job"), ("drain", "n0"), ("requeue", "job")]
