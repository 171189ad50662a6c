"""What is known about one part: its distinct facts and the history of its counters, both bounded."""

from __future__ import annotations

import math

import msgspec

from medevac.core.decision import Struct
from medevac.core.events import EccCounted, FaultSeen, Value
from medevac.core.policy import Counter

MOST_FACTS = 256
MOST_READINGS = 64
PLACES = ("row", "physaddr")


class Fact(Struct, frozen=True, kw_only=True):
    """One distinct observation; copies of it are the same fact."""

    key: str
    at: float
    kind: str
    code: int | None = None
    details: dict[str, Value] = {}


class Reading(Struct, frozen=True, kw_only=True):
    """Error counters as read at one time."""

    at: float
    sbe: int
    dbe: int
    remapped_rows: int

    def value(self, counter: Counter) -> int:
        """The counter of that name."""
        return {"sbe": self.sbe, "dbe": self.dbe, "remapped_rows": self.remapped_rows}[counter]


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything a rule may look at for one part. `sound_at`: the last reading before uncorrected errors rose."""

    facts: tuple[Fact, ...] = ()
    readings: tuple[Reading, ...] = ()
    sound_at: float | None = None

    def with_fact(self, event: FaultSeen) -> Evidence:
        """The same when the fact is known, else one more, the oldest dropped at the bound."""
        key = fact_key(event)
        if any(fact.key == key for fact in reversed(self.facts)):
            return self
        fact = Fact(key=key, at=event.at, kind=event.kind, code=event.code, details=event.details)
        return msgspec.structs.replace(self, facts=(*self.facts, fact)[-MOST_FACTS:])

    def with_reading(self, event: EccCounted) -> Evidence:
        """One more reading; between changes only the first and the newest are kept."""
        new = Reading(at=event.at, sbe=event.sbe, dbe=event.dbe, remapped_rows=event.remapped_rows)
        before = self.readings
        if before and new.at < before[-1].at:
            return self
        if len(before) > 1 and _same(before[-1], new) and _same(before[-2], new):
            before = before[:-1]
        rose = bool(before) and new.dbe > before[-1].dbe
        sound_at = self.sound_at if rose else new.at
        return msgspec.structs.replace(self, readings=_bounded((*before, new)), sound_at=sound_at)

    def count(self, kind: str, codes: tuple[int, ...], since: float) -> tuple[Fact, ...]:
        """The facts of this kind and these codes (all, where none is named) since then."""
        return tuple(f for f in self.facts if f.at >= since and f.kind == kind and (not codes or f.code in codes))

    def growth(self, counter: Counter, since: float) -> int:
        """By how much a counter grew since then; a reset counter starts anew from 0."""
        window = [r for i, r in enumerate(self.readings) if r.at >= since or self._next_is_later(i, since)]
        grown, last = 0, None
        for reading in window:
            value = reading.value(counter)
            if last is not None:
                grown += value - last if value >= last else value
            last = value
        return grown

    def _next_is_later(self, index: int, since: float) -> bool:
        return index + 1 < len(self.readings) and self.readings[index + 1].at >= since


def fact_key(event: FaultSeen) -> str:
    """What makes a fact the same one when it is seen again, by whatever source.

    A fact that names a place in memory (a row, an address) is that place's, once a day; any other is
    told apart by its second.
    """
    places = [f"{name}={event.details[name]}" for name in PLACES if event.details.get(name) is not None]
    when = int(event.at // 86400) if places else int(event.at)
    return "|".join([event.kind, str(event.code), *places, str(when)])


def _bounded(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """At the bound the one goes without which the gap is smallest for its age: an hour is known to minutes, a week to a
    day, and growth stays whole. What stands on either side of a reset stays.
    """
    if len(readings) <= MOST_READINGS:
        return readings
    now, choice, least = readings[-1].at, 0, math.inf
    for i in range(1, len(readings) - 1):
        before, this, after = readings[i - 1 : i + 2]
        gap = (after.at - before.at) / max(now - before.at, 1e-9)
        if gap < least and not _fell(before, this) and not _fell(this, after):
            choice, least = i, gap
    return readings[:choice] + readings[choice + 1 :]


def _fell(one: Reading, other: Reading) -> bool:
    return other.sbe < one.sbe or other.dbe < one.dbe or other.remapped_rows < one.remapped_rows


def _same(one: Reading, other: Reading) -> bool:
    return (one.sbe, one.dbe, one.remapped_rows) == (other.sbe, other.dbe, other.remapped_rows)
