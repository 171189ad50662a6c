"""The health score's formula and its honesty about what was not measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.core.health_score import Condition, health_score

MEASURED = Condition(sbe_7d=0, dbe_30d=0, retired=0, age_days=0.0, hours_above_85c=0.0)


def test_a_new_gpu_without_errors_is_whole() -> None:
    score = health_score(MEASURED)
    assert (score.low, score.high) == (1.0, 1.0)


def test_nothing_measured_says_nothing() -> None:
    score = health_score(Condition())
    assert (score.low, score.high) == (0.0, 1.0)


def test_each_term_takes_what_the_formula_says() -> None:
    worn = Condition(sbe_7d=150, dbe_30d=1, retired=20, age_days=912.5, hours_above_85c=438.0)
    score = health_score(worn)
    assert score.low == score.high == pytest.approx(1 - 0.15 - 0.3 - 0.1 - 0.05 - 0.05)


@given(
    sbe=st.none() | st.integers(0, 10**6),
    dbe=st.none() | st.integers(0, 100),
    retired=st.none() | st.integers(0, 512),
    age=st.none() | st.floats(0, 4000),
    heat=st.none() | st.floats(0, 9000),
)
def test_an_interval_within_0_and_1(
    sbe: int | None, dbe: int | None, retired: int | None, age: float | None, heat: float | None
) -> None:
    known = Condition(sbe_7d=sbe, dbe_30d=dbe, retired=retired, age_days=age, hours_above_85c=heat)
    score = health_score(known)
    assert 0.0 <= score.low <= score.high <= 1.0
    assert (score.low == score.high) or None in (sbe, dbe, retired, age, heat)
