"""The hang limit learned from a job's own pace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.core.events import Phase
from medevac.core.progress import HangRule, Looks, Pace, percentile

PHASES: tuple[Phase, ...] = ("start", "load", "step", "eval", "save", "end")


def steps(count: int, seconds: float, pace: Pace | None = None) -> Pace:
    pace = pace or Pace().after("start", 100.0)
    for _ in range(count + 1):
        pace = pace.after("step", pace.since + seconds)
    return pace


def test_nothing_reported_has_no_deadline() -> None:
    assert Pace().deadline() is None


def test_start_and_load_have_half_an_hour() -> None:
    assert Pace().after("start", 1000.0).deadline() == 2800.0
    assert Pace().after("start", 1000.0).after("load", 1100.0).deadline() == 2900.0


def test_step_limit_is_learned_from_the_tenth_step_on() -> None:
    assert steps(9, 1.5).limit("step") == 1800.0
    assert steps(10, 1.5).limit("step") == pytest.approx(6.0)


def test_step_limit_is_clamped_at_both_ends() -> None:
    assert steps(10, 0.01).limit("step") == 5.0
    assert steps(10, 1000.0).limit("step") == 1800.0


def test_one_slow_step_in_two_hundred_does_not_stretch_the_limit() -> None:
    pace = steps(199, 1.0)
    pace = pace.after("step", pace.since + 60)
    assert pace.limit("step") == pytest.approx(5.0)


def test_old_steps_leave_the_window() -> None:
    pace = steps(200, 2.0, steps(50, 30.0))
    assert len(pace.steps) == 200
    assert pace.limit("step") == pytest.approx(7.0)


def test_the_time_to_the_first_step_is_the_starts_not_the_steps() -> None:
    pace = Pace().after("start", 0.0).after("step", 500.0)
    assert pace.steps == ()


def during(pace: Pace, phase: Phase, seconds: float) -> Pace:
    pace = pace.after(phase, pace.since + 0.5)
    return pace.after("step", pace.since + seconds)


def test_eval_and_save_learn_their_own_maximum_and_leave_steps_alone() -> None:
    pace = steps(20, 1.0)
    known = len(pace.steps)
    for seconds in (30.0, 40.0):
        pace = during(during(pace, "eval", seconds), "save", 10.0)
    assert (pace.limit("eval"), pace.limit("save")) == (1800.0, 1800.0), "two say little"
    pace = during(during(pace, "eval", 35.0), "save", 25.0)
    assert pace.limit("eval") == pytest.approx(120.0)
    assert pace.limit("save") == pytest.approx(75.0)
    assert len(pace.steps) == known


def test_a_short_save_does_not_make_a_short_limit() -> None:
    pace = Pace().after("start", 0.0)
    for _ in range(5):
        pace = during(pace, "save", 0.1)
    assert pace.limit("save") == 60.0


def test_a_long_eval_may_exceed_the_ceiling_of_a_step() -> None:
    pace = Pace().after("start", 0.0)
    for _ in range(3):
        pace = during(pace, "eval", 900.0)
    assert pace.limit("eval") == 2700.0


def test_looks_at_one_silence_become_rarer_and_begin_anew_with_the_next() -> None:
    rule, looks, at, gaps = HangRule(), Looks(), 1000.0, []
    for _ in range(20):
        looks = looks.after(996.0, at, rule)
        gaps.append(looks.next_at - at)
        at = looks.next_at
    assert gaps[:4] == [2.0, 2.0, 2.0, 2.5]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60.0
    again = looks.after(5000.0, 5004.0, rule)
    assert (again.times, again.next_at) == (1, 5006.0)
    assert Looks().after(1.0, 2.0, HangRule(look_s=0.0)).next_at == 2.5, "never at once again"


def test_the_end_never_hangs() -> None:
    pace = steps(20, 1.0).after("end", 1000.0)
    assert pace.deadline() is None
    assert pace.limit("end") == math.inf


def test_what_was_learned_outlives_a_restart() -> None:
    pace = steps(20, 1.0)
    again = pace.after("start", pace.since + 3)
    assert again.limit("start") == 1800.0
    assert again.after("step", again.since + 30).limit("step") == pytest.approx(5.0)


def test_a_late_report_changes_nothing() -> None:
    pace = steps(3, 1.0)
    assert pace.after("step", pace.since - 10) == pace


def test_numbers_are_policy() -> None:
    pace = Pace(rule=HangRule(ceiling_s=60.0, min_steps=2, margin_s=0.0, floor_s=0.1)).after("start", 0.0)
    assert pace.deadline() == 60.0
    assert steps(2, 4.0, pace).limit("step") == pytest.approx(8.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PHASES), st.floats(-5, 1e6)), max_size=60))
def test_a_deadline_is_never_before_the_last_report(reports: list[tuple[Phase, float]]) -> None:
    pace = Pace()
    for phase, at in reports:
        pace = pace.after(phase, at)
        deadline = pace.deadline()
        assert deadline is None or deadline >= pace.since + pace.rule.floor_s - 1e-6


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300).map(tuple))
def test_percentile_is_a_value_that_enough_others_do_not_exceed(values: tuple[float, ...]) -> None:
    p99 = percentile(values, 0.99)
    assert p99 in values
    assert sum(v <= p99 for v in values) >= 0.99 * len(values)
