"""Incidents in bounded memory: as if told at the end where a log goes on for days; no more bursts held than asked."""

from __future__ import annotations

import random

import pytest
from tests.unit.decode_says.faults import fault, xid

from medevac.core.events import FaultSeen
from medevac.decode.incidents import Incident, Incidents
from medevac.decode.incidents_told import Told

DAY = 86400.0


def days(count: int, seed: int = 1) -> list[FaultSeen]:
    """A few faults of several kinds a day, some of them on one node within a minute."""
    rng = random.Random(seed)
    faults = []
    for day in range(count):
        for _ in range(6):
            at = day * DAY + rng.randrange(80_000)
            node, pci = f"node{rng.randrange(4)}", f"0000:{rng.randrange(4):02x}:00.0"
            faults.append(xid(rng.choice([13, 31, 48, 63, 79, 95]), at, node=node, pci=pci, pid=rng.randrange(3)))
            faults.append(xid(45, at + 5, node=node, pci=pci, pid=7))
            faults.append(fault("oom", at + 9, node=node, pid=rng.randrange(9)))
    return sorted(faults, key=lambda seen: seen.at)


def told_of(faults: list[FaultSeen], at_once: int) -> tuple[list[Incident], list[tuple[str, str] | None]]:
    """The incidents, and incident and role of each event."""
    with Told(at_once=at_once) as told:
        bursts = [told.add(seen)[1] for seen in faults]
        told.finish()
        incidents = list(told)
        assert list(told) == incidents
        return incidents, [told.members.get(burst.index) for burst in bursts]


def test_what_is_told_early_is_what_would_be_told_at_the_end() -> None:
    faults = days(60)
    collected = Incidents()
    bursts = [collected.add(seen)[1] for seen in faults]
    stories = collected.stories()
    members = collected.memberships(stories)
    whole = [(member.incident, member.role) if (member := members.get(burst.index)) else None for burst in bursts]
    incidents, roles = told_of(faults, at_once=100)
    assert incidents == [story.incident for story in stories]
    assert roles == whole


def test_members_alone_are_the_same_members() -> None:
    faults = days(20)
    with Told(members_only=True) as told:
        bursts = [told.add(seen)[1] for seen in faults]
        told.finish()
        assert told.count == 1
        assert [told.members.get(burst.index) for burst in bursts] == told_of(faults, at_once=1000)[1]


@pytest.mark.parametrize("apart", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("kind", ["xid", "nvrm_info"])
def test_a_storm_of_different_faults_does_not_grow(apart: float, kind: str) -> None:
    """All of them in one incident, which is told in parts; also in a log without times, or one that runs backwards."""
    storm = [fault(kind, n * apart, code=79, pci=f"{n:04x}:00:00.0") for n in range(3000)]
    with Told(at_once=200) as told:
        held = 0
        for seen in storm:
            told.add(seen)
            held = max(held, len(told._collected.bursts.all))
        told.finish()
        incidents = list(told)
    assert held <= 200
    if kind == "nvrm_info":
        assert incidents == []
        return
    assert sum(fact.count for incident in incidents for fact in incident.facts) == len(storm)


def test_a_filter_leaves_incidents_out_but_not_roles() -> None:
    with Told(shown=lambda incident: incident.severity == "critical") as told:
        quiet = told.add(fault("oom", 5))[1]
        told.add(xid(79, 5000))
        told.finish()
        assert told.count == len(list(told)) == 1
        assert told.members.get(quiet.index) is not None


def test_a_harmless_line_belongs_nowhere() -> None:
    with Told() as told:
        burst = told.add(fault("nvrm_info", 1, pci="0000:3b:00.0"))[1]
        told.finish()
        assert told.members.get(burst.index) is None
        assert list(told) == []
