"""Replay: the same bytes from the same events, another decision from an altered one, and where two policies part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.scenario.script import read
from tests.scenario.world import World

from medevac.catalog.policy import load_policy
from medevac.controller.replay import compare, differences, digests, recompute
from medevac.controller.step import paired, refold
from medevac.core.events import FaultSeen
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import DecisionRecord, EventRecord, Record

SCENARIOS = sorted((Path(__file__).parents[2] / "scenario").glob("*.jsonl"))
STORM = next(path for path in SCENARIOS if path.stem == "ecc_storm")
DEMO = load_policy("demo")


def stored(path: Path) -> list[Record]:
    """The scenario's log as a store gives it back."""
    raw = msgspec.json.encode(World(read(path)).run())
    return msgspec.json.decode(raw, type=list[Record])


def policies(*known: Policy) -> dict[str, Policy]:
    shipped = [load_policy("demo"), load_policy("demo", "monitor"), *known]
    return {policy.digest: policy for policy in shipped}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_same_events_give_the_same_bytes(path: Path) -> None:
    records = stored(path)
    answers = recompute(records, policies().__getitem__)
    assert [a.record.seq for a in answers if not a.same()] == []
    assert sum(a.one is not None for a in answers) == sum(isinstance(r, DecisionRecord) for r in records)


def altered(records: Sequence[Record]) -> list[Record]:
    """The Xid 48 of the log was another one."""
    return [
        replace(r, event=replace(r.event, code=31))
        if isinstance(r, EventRecord) and isinstance(r.event, FaultSeen) and r.event.code == 48
        else r
        for r in records
    ]


def test_one_altered_event_alters_the_decision() -> None:
    records = altered(stored(STORM))
    apart = [a for a in recompute(records, policies().__getitem__) if not a.same()]
    assert isinstance(apart[0].record.event, FaultSeen)
    changed = dict.fromkeys(path for path, _, _ in differences(apart[0].one, apart[0].other))
    assert "findings[0].rule" in changed


def test_a_decision_that_stands_behind_later_events_is_paired_with_its_own() -> None:
    records = stored(STORM)
    decisions = [r for r in records if isinstance(r, DecisionRecord)]
    events = [r for r in records if isinstance(r, EventRecord)]
    moved: list[Record] = [*events, *(replace(r, seq=10_000 + r.seq) for r in decisions)]
    assert [d for _, d in paired(moved)] == [d for _, d in paired(records)]
    assert all(a.same() for a in recompute(moved, policies().__getitem__))


def test_the_fold_of_a_stored_log_is_where_the_live_view_was() -> None:
    world = World(read(STORM))
    *_, (view, _, _) = refold(View.under(world.policy), world.run())
    assert view == world.view


def test_what_was_never_decided_is_not_compared() -> None:
    records = stored(STORM)
    last = max(r.decision.cause for r in records if isinstance(r, DecisionRecord))
    answers = recompute(records, policies().__getitem__)
    assert answers[-1].record.seq == last


def test_a_loop_that_took_over_with_another_policy_is_replayed_with_it() -> None:
    strict = replace(DEMO, name="strict", digest="strict", recovery=replace(DEMO.recovery, backoff_s=(9.0,)))
    world = World(read(STORM))
    records = world.run()
    half = next(
        n for n, r in enumerate(records) if isinstance(r, DecisionRecord) and r.decision.at > world.view.now - 24
    )
    later = World(read(STORM), strict).run()
    seen = {r.decision.id for r in records[:half] if isinstance(r, DecisionRecord)}
    assert seen <= {r.decision.id for r in later if isinstance(r, DecisionRecord)}
    mixed = [
        replace(r, decision=replace(r.decision, policy=DEMO.digest))
        if isinstance(r, DecisionRecord) and r.decision.id in seen
        else r
        for r in later
    ]
    assert digests(mixed) == (DEMO.digest, "strict")
    assert all(a.same() for a in recompute(mixed, policies(strict).__getitem__))


def test_another_policy_parts_where_it_decides_otherwise() -> None:
    calm = replace(DEMO, name="calm", digest="calm", rules=tuple(r for r in DEMO.rules if r.family != "memory"))
    answers = compare(stored(STORM), calm)
    apart = [a for a in answers if not a.same_but_policy()]
    assert apart
    assert all(not (a.other and a.other.findings) for a in apart)


def test_a_policy_that_differs_in_name_only_decides_the_same() -> None:
    answers = compare(stored(STORM), replace(DEMO, digest="another"))
    assert all(a.same_but_policy() for a in answers)
    assert not all(a.same() for a in answers)


def test_an_empty_log_has_nothing_to_compare() -> None:
    assert recompute([], policies().__getitem__) == []
