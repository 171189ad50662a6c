"""How healthy a GPU is, 0 to 1, as an interval: what was not measured widens it and never counts as nothing."""

from __future__ import annotations

import msgspec


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The shape of the values here: weights are what a person writes."""


class Condition(Struct, frozen=True, kw_only=True):
    """What is known of a GPU; None: not measured. Counts, days, hours."""

    sbe_7d: int | None = None
    dbe_30d: int | None = None
    retired: int | None = None
    age_days: float | None = None
    hours_above_85c: float | None = None


class Score(Struct, frozen=True, kw_only=True):
    """The score lies between `low` and `high`; both equal when everything was measured."""

    low: float
    high: float


class Weights(Struct, frozen=True, kw_only=True):
    """How much each term can take away, and where it is full (policy data)."""

    sbe_most: float = 0.3
    sbe_full: float = 300.0
    dbe_each: float = 0.3
    dbe_most: float = 0.5
    retired_most: float = 0.3
    retired_full: float = 60.0
    age_most: float = 0.1
    age_full_days: float = 1825.0
    heat_most: float = 0.1
    heat_full_hours: float = 876.0


def health_score(known: Condition, weights: Weights | None = None) -> Score:
    """1 minus what each term takes away: corrected errors of 7 days, uncorrected of 30, retired rows, age, heat.

    An unmeasured term takes nothing from `high` and all it can from `low`.
    """
    w = weights or Weights()
    terms = (
        (known.sbe_7d, w.sbe_most / w.sbe_full, w.sbe_most),
        (known.dbe_30d, w.dbe_each, w.dbe_most),
        (known.retired, w.retired_most / w.retired_full, w.retired_most),
        (known.age_days, w.age_most / w.age_full_days, w.age_most),
        (known.hours_above_85c, w.heat_most / w.heat_full_hours, w.heat_most),
    )
    least = sum(0.0 if value is None else min(value * each, most) for value, each, most in terms)
    most_lost = sum(most if value is None else min(value * each, most) for value, each, most in terms)
    return Score(low=max(1.0 - most_lost, 0.0), high=max(1.0 - least, 0.0))
