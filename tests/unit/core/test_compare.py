"""Recommendations beside what people did."""

from __future__ import annotations

from medevac.core.compare import Advice, Compared, Deed, Summary, What, compare

HOUR, DAY = 3600.0, 86_400.0


def advice(at: float, subject: str = "n1", what: What = "drain") -> Advice:
    return Advice(what=what, subject=subject, at=at)


def deed(at: float, subject: str = "n1", what: What = "drain", *, routine: bool = False) -> Deed:
    return Deed(what=what, subject=subject, at=at, routine=routine)


def beside(advised: list[Advice], deeds: list[Deed], now: float = 10 * DAY) -> Summary:
    return compare(advised, deeds, now=now, within_s=DAY, before_s=HOUR)


def told(found: Summary) -> list[tuple[str, str, float | None]]:
    return [(row.verdict, row.subject, row.earlier_s) for row in found.rows]


def test_the_same_on_the_same_part_is_agreed_and_says_who_was_earlier() -> None:
    found = beside([advice(100.0), advice(9000.0, "n2")], [deed(400.0), deed(8000.0, "n2")])
    assert told(found) == [("agreed", "n1", 300.0), ("agreed", "n2", -1000.0)]
    assert found.earlier_s == {"median": -350.0, "least": -1000.0, "most": 300.0}


def test_another_deed_and_none_at_all_differ() -> None:
    found = beside([advice(100.0, "j1", "requeue"), advice(200.0)], [deed(150.0, "j1", "cancel")])
    assert told(found) == [("differed", "j1", 50.0), ("differed", "n1", None)]
    assert found.earlier_s is None


def test_what_is_still_to_be_answered_is_open() -> None:
    assert told(beside([advice(100.0)], [], now=2 * HOUR)) == [("open", "n1", None)]


def test_a_deed_without_a_recommendation_is_missed_unless_people_do_it_every_day() -> None:
    found = beside([], [deed(100.0), deed(200.0, "j1", "cancel", routine=True)])
    assert told(found) == [("missed", "n1", None)]
    assert found.counts == {"agreed": 0, "differed": 0, "missed": 1, "open": 0}


def test_a_deed_too_early_or_too_late_answers_nothing() -> None:
    found = beside([advice(2 * DAY)], [deed(2 * DAY - 2 * HOUR), deed(4 * DAY)])
    assert sorted(told(found)) == [("differed", "n1", None), ("missed", "n1", None), ("missed", "n1", None)]


def test_the_same_said_again_counts_from_the_first_time_and_anew_after_a_deed() -> None:
    found = beside([advice(100.0), advice(200.0), advice(5000.0)], [deed(300.0), deed(6000.0)])
    assert told(found) == [("agreed", "n1", 200.0), ("agreed", "n1", 1000.0)]


def test_a_job_that_is_left_is_agreed_on_by_leaving_or_cancelling_it() -> None:
    left = [advice(100.0, "j1", "leave"), advice(100.0, "j2", "leave"), advice(100.0, "j3", "leave")]
    found = beside(left, [deed(200.0, "j2", "cancel"), deed(200.0, "j3", "requeue")])
    assert {row.subject: row.verdict for row in found.rows} == {"j1": "agreed", "j2": "agreed", "j3": "differed"}


def test_each_deed_answers_one_recommendation() -> None:
    found = beside([advice(100.0, "j1", "requeue"), advice(150.0, "j1", "leave")], [deed(200.0, "j1", "requeue")])
    assert found.rows[0] == Compared(
        verdict="agreed",
        subject="j1",
        advice=advice(100.0, "j1", "requeue"),
        deed=deed(200.0, "j1", "requeue"),
        earlier_s=100.0,
    )
    assert found.rows[1].deed is None
