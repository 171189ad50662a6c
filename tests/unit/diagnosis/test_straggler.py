"""Slow ranks against their peers, slow jobs against their past."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.core.straggler import SlowRule, slowdown, stragglers


def steps(count: int, slow: dict[int, float], seed: int = 1, ranks: int = 8) -> list[dict[int, float]]:
    chance = random.Random(seed)
    return [{rank: chance.gauss(1.0, 0.02) * slow.get(rank, 1.0) for rank in range(ranks)} for _ in range(count)]


def series(seed: int, *parts: tuple[int, float]) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(middle, 0.02 * middle) for count, middle in parts for _ in range(count)]


def test_one_slow_rank_is_named_with_its_ratio() -> None:
    (found,) = stragglers(steps(20, {5: 1.4}))
    assert found.rank == 5
    assert 1.3 < found.ratio < 1.5


def test_equal_ranks_have_no_straggler() -> None:
    assert all(stragglers(steps(20, {}, seed)) == () for seed in range(20))


def test_one_slow_step_is_no_straggler() -> None:
    made = steps(20, {})
    made[7][3] = 9.0
    assert stragglers(made) == ()


def test_all_slow_together_is_no_straggler() -> None:
    assert stragglers(steps(20, dict.fromkeys(range(8), 3.0))) == ()


def test_too_few_steps_or_ranks_say_nothing() -> None:
    assert stragglers(steps(4, {5: 3.0})) == ()
    assert stragglers(steps(20, {1: 3.0}, ranks=2)) == ()


def test_a_lasting_rise_is_a_slowdown() -> None:
    found = slowdown(series(2, (60, 1.0), (30, 1.25)))
    assert found is not None
    assert 1.2 < found.now_s < 1.3
    assert 55 <= found.since <= 65


def test_a_steady_job_and_single_pauses_are_no_slowdown() -> None:
    for seed in range(30):
        steady = series(seed, (150, 1.0))
        assert slowdown(steady) is None
        steady[80] = 30.0
        assert slowdown(steady) is None


def test_a_rise_that_ended_is_no_slowdown() -> None:
    assert slowdown(series(3, (60, 1.0), (10, 1.5), (80, 1.0))) is None


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 9), st.floats(0, 1e6)), max_size=30),
    st.lists(st.floats(0, 1e6), max_size=80),
)
def test_any_times_give_an_answer(made: list[dict[int, float]], seconds: list[float]) -> None:
    rule = SlowRule(baseline=10)
    assert all(0 < one.slow_steps <= one.steps for one in stragglers(made, rule))
    found = slowdown(seconds, rule)
    assert found is None or found.since >= 10
