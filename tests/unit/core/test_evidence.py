"""Distinct facts and counters: what is counted is what happened, however often it was seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.builders import ecc, of, xid

from medevac.core.evidence import MOST_FACTS, MOST_READINGS, fact_key


def test_copies_of_a_fact_are_one() -> None:
    seen_by_three = [xid(63, "g00", at, row="0x1f") for at in (100.0, 100.4, 107.0)]
    assert len(of(*seen_by_three).facts) == 1


def test_another_row_is_another_fact() -> None:
    assert len(of(xid(63, "g00", 100.0, row="0x1"), xid(63, "g00", 100.0, row="0x2")).facts) == 2


def test_without_a_place_the_second_tells_facts_apart() -> None:
    assert len(of(xid(79, "g00", 100.1), xid(79, "g00", 100.9)).facts) == 1
    assert len(of(xid(79, "g00", 100.1), xid(79, "g00", 101.1)).facts) == 2


def test_the_same_row_on_another_day_is_another_fact() -> None:
    assert fact_key(xid(63, "g00", 10.0, row="0x1")) != fact_key(xid(63, "g00", 86410.0, row="0x1"))


def test_facts_stay_bounded() -> None:
    evidence = of(*(xid(63, "g00", 100.0, row=str(row)) for row in range(MOST_FACTS + 50)))
    assert len(evidence.facts) == MOST_FACTS
    assert evidence.facts[-1].details == {"row": str(MOST_FACTS + 49)}


def test_a_counter_that_fell_was_reset() -> None:
    evidence = of(ecc("g00", 1, sbe=100), ecc("g00", 2, sbe=130), ecc("g00", 3, sbe=5), ecc("g00", 4, sbe=9))
    assert evidence.growth("sbe", 0.0) == 30 + 5 + 4


def test_growth_counts_from_the_last_reading_before_the_window() -> None:
    evidence = of(ecc("g00", 10, sbe=1), ecc("g00", 20, sbe=4), ecc("g00", 30, sbe=9))
    assert evidence.growth("sbe", 25.0) == 5
    assert evidence.growth("sbe", 30.0) == 5
    assert evidence.growth("sbe", 31.0) == 0


def test_a_late_reading_changes_nothing() -> None:
    evidence = of(ecc("g00", 10, sbe=1))
    assert evidence.with_reading(ecc("g00", 9, sbe=100)) is evidence


def test_sound_until_uncorrected_errors_rose() -> None:
    evidence = of(ecc("g00", 10), ecc("g00", 20), ecc("g00", 30, dbe=1))
    assert evidence.sound_at == 20


def test_equal_readings_are_kept_as_first_and_newest() -> None:
    evidence = of(*(ecc("g00", at, sbe=3) for at in range(1000)))
    assert [reading.at for reading in evidence.readings] == [0, 999]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300))
def test_growth_is_never_negative_and_readings_stay_bounded(counts: list[int]) -> None:
    evidence = of(*(ecc("g00", float(at), sbe=count) for at, count in enumerate(counts)))
    assert len(evidence.readings) <= MOST_READINGS
    assert evidence.growth("sbe", 0.0) >= 0
    assert evidence.growth("sbe", float(len(counts))) == 0
