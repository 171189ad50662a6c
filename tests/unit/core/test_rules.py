"""Each predicate, where it holds and where it does not, with the numbers it says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.core.builders import DEMO, HARD, ecc, of, rule, xid

from medevac.core.decision import Finding, Part
from medevac.core.events import EccCounted, FaultSeen
from medevac.core.evidence import Evidence
from medevac.core.policy import Absent, OverPeers, Rose, Rule, Seen, Total
from medevac.core.rules import findings

GPU = Part(domain="gpu", name="g00", node="n0")


def found(one: Rule, *events: FaultSeen | EccCounted, peers: dict[str, Evidence] | None = None) -> list[Finding]:
    """What the rule says after the last of these events."""
    policy = replace(DEMO, rules=(one,))
    return list(findings(events[-1], GPU, of(*events), peers or {}, policy))


def clauses(found: list[Finding]) -> list[tuple[object, object]]:
    return [(clause.value, clause.limit) for finding in found for clause in finding.clauses]


def test_seen_counts_distinct_facts_within_its_time() -> None:
    storm = rule(Seen(kind="xid", codes=(63,), at_least=3, within_s=100))
    rows = [xid(63, "g00", at, row=str(at)) for at in (0.0, 50.0, 90.0)]
    assert clauses(found(storm, *rows)) == [(3, 3)]
    assert found(storm, *rows[:2], rows[1]) == []
    assert found(storm, *rows[:2], xid(63, "g00", 150.1, row="late")) == []


def test_seen_looks_at_the_details() -> None:
    unless = rule(Seen(kind="xid", codes=(95,), unless={"rst": "No"}))
    where = rule(Seen(kind="xid", codes=(95,), where={"rst": "No"}))
    with_reset, without = xid(95, "g00", 1.0, rst="Yes"), xid(95, "g00", 1.0, rst="No")
    assert found(unless, with_reset)
    assert not found(unless, without)
    assert found(where, without)
    assert not found(where, with_reset)


def test_seen_of_no_code_takes_every_code() -> None:
    any_xid = rule(Seen(kind="xid"))
    assert found(any_xid, xid(9999, "g00", 1.0))
    assert not found(any_xid, replace(xid(1, "g00", 1.0), kind="sxid"))


def test_absent_holds_where_nothing_such_was_seen() -> None:
    alone = rule(Seen(kind="xid", codes=(45,)), Absent(kind="xid", codes=(79,), within_s=60))
    assert found(alone, xid(45, "g00", 100.0))
    assert not found(alone, xid(79, "g00", 70.0), xid(45, "g00", 100.0))
    assert found(alone, xid(79, "g00", 30.0), xid(45, "g00", 100.0))


@pytest.mark.parametrize(("counts", "holds"), [((0, 1), True), ((1, 1), False), ((7, 1), True), ((3, 0), False)])
def test_rose_starts_anew_after_a_reset(counts: tuple[int, int], holds: bool) -> None:
    rose = rule(Rose(counter="dbe", by=1, within_s=60))
    events = [ecc("g00", at, dbe=count) for at, count in enumerate(counts)]
    assert bool(found(rose, *events)) is holds


def test_total_looks_at_the_newest_reading() -> None:
    total = rule(Total(counter="remapped_rows", at_least=101))
    assert clauses(found(total, ecc("g00", 1, rows=101))) == [(101, 101)]
    assert not found(total, ecc("g00", 1, rows=101), ecc("g00", 2, rows=100))


def test_over_peers_needs_peers_and_a_least_growth() -> None:
    over = rule(OverPeers(counter="sbe", ratio=50.0, by=1000, within_s=3600))
    mine = [ecc("g00", 1, sbe=0), ecc("g00", 2, sbe=5000)]
    quiet = {name: of(ecc(name, 1, sbe=0), ecc(name, 2, sbe=2)) for name in ("g01", "g10")}
    loud = {name: of(ecc(name, 1, sbe=0), ecc(name, 2, sbe=400)) for name in ("g01", "g10")}
    assert clauses(found(over, *mine, peers=quiet)) == [(5000, 100.0)]
    assert not found(over, *mine, peers=loud)
    assert not found(over, *mine)
    assert not found(over, ecc("g00", 1, sbe=0), ecc("g00", 2, sbe=999), peers=quiet)


def test_a_rule_is_asked_only_by_an_event_that_concerns_it() -> None:
    assert found(HARD, ecc("g00", 1), xid(48, "g00", 2.0))
    assert not found(HARD, xid(48, "g00", 1.0), ecc("g00", 2))


def test_an_unknown_code_is_no_finding_of_the_shipped_rules() -> None:
    policy = DEMO
    event = xid(9999, "g00", 1.0)
    assert list(findings(event, GPU, of(event), {}, policy)) == []


def test_doubt_goes_back_to_the_last_sound_reading() -> None:
    fault = xid(48, "g00", 100.0)
    assert found(HARD, ecc("g00", 40.0), ecc("g00", 60.0), fault)[0].doubt_from == 60.0
    assert found(HARD, ecc("g00", 99.8), fault)[0].doubt_from == 100.0 - DEMO.lineage.margin_s
    assert found(HARD, fault)[0].doubt_from == 100.0 - DEMO.lineage.blind_s
    assert found(HARD, ecc("g00", 60.0), ecc("g00", 99.0, dbe=1), fault)[0].doubt_from == 60.0


def test_a_finding_names_the_facts_it_stands_on() -> None:
    storm = rule(Seen(kind="xid", codes=(63,), at_least=2))
    rows = [xid(63, "g00", float(at), row=str(at)) for at in range(3)]
    assert found(storm, *rows)[0].facts == ("xid|63|row=0|0", "xid|63|row=1|0", "xid|63|row=2|0")
