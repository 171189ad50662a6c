"""A low health score restricts, a repair brings back: what is decided, and what ends it."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.core.builders import CLUSTER, Told, ecc, xid

from medevac.catalog.policy import load_policy
from medevac.core.actions import GiveBack, Isolate, Page, Repair, Restrict
from medevac.core.decision import Decision
from medevac.core.events import ActionSettled, OrderGiven
from medevac.core.evidence import Evidence

STANDARD = load_policy("standard")
BUDGET = replace(STANDARD.budget, cluster_share=1.0, rack_share=1.0, floor_share=0.0)
POLICY = replace(STANDARD, budget=BUDGET)


def of(decision: Decision, kind: type) -> list[object]:
    return [action for action in decision.actions if isinstance(action, kind)]


def all_of(told: Told, kind: type) -> list[object]:
    return [action for decision in told.decisions for action in of(decision, kind)]


def order_return(target: str, at: float) -> OrderGiven:
    return OrderGiven(at=at, what="return", who="kim", target=target)


# --- restricted ------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_certainly_worn_is_restricted_once() -> None:
    told = Told(replace(POLICY, rules=tuple(r for r in POLICY.rules if r.id == "low-health-score")), CLUSTER)
    told.tell(ecc("g00", 10.0, rows=90), ecc("g00", 20.0, sbe=299, rows=90))
    assert told.view.device("g00").state == "healthy", "0.4 is not under 0.4"
    decision = told.tell(ecc("g00", 30.0, sbe=320, rows=90), *[ecc("g01", 31.0)])
    assert told.view.device("g00").state == "healthy"
    told.tell(*[ecc("g00", 40.0, sbe=320, rows=90), ecc("g00", 50.0, sbe=320, dbe=1, rows=90)])
    (restrict,) = all_of(told, Restrict)
    assert (restrict.node, restrict.gpu) == ("n0", "g00")  # type: ignore[attr-defined]
    assert told.view.device("g00").state == "restricted"
    told.tell(ecc("g00", 5000.0, sbe=330, dbe=1, rows=90))
    assert len(all_of(told, Restrict)) == 1
    assert decision.actions == ()


def test_what_was_not_measured_restricts_nothing() -> None:
    told = Told(POLICY, CLUSTER, xid(63, "g00", 10.0, row="1"), xid(13, "g00", 20.0))
    assert all_of(told, Restrict) == []
    assert told.view.device("g00").state == "healthy"


def restricted() -> Told:
    told = Told(replace(POLICY, rules=tuple(r for r in POLICY.rules if r.id == "low-health-score")), CLUSTER)
    told.tell(ecc("g00", 10.0, rows=90), ecc("g00", 50.0, sbe=320, dbe=1, rows=90))
    told.settle(60.0)
    return told


def test_a_person_lifts_it_and_what_was_counted_before_counts_no_more() -> None:
    told = restricted()
    (back,) = of(told.tell(order_return("g00", 70.0)), GiveBack)
    assert back.gpu == "g00"  # type: ignore[attr-defined]
    assert told.view.device("g00").state == "lifting"
    told.settle(80.0)
    assert told.view.device("g00").state == "healthy"
    told.tell(ecc("g00", 90.0, sbe=321, dbe=1, rows=90))
    assert told.view.device("g00").state == "healthy"


def test_a_restriction_that_cannot_be_lifted_stands_and_pages() -> None:
    told = restricted()
    told.tell(order_return("g00", 70.0))
    decision = Decision(id="", cause=0, at=0.0)
    for action in sorted(told.view.pending):
        decision = told.tell(ActionSettled(at=80.0, action=action, outcome="refused", why="no such node"))
    assert told.view.device("g00").state == "restricted"
    assert of(decision, Page)


def test_a_restricted_gpu_that_fails_goes_out_and_comes_back_healthy() -> None:
    told = restricted()
    told.policy = POLICY
    told.tell(xid(48, "g00", 100.0))
    told.settle(110.0)
    assert told.view.device("g00").state == "isolated"
    told.tell(order_return("g00", 120.0))
    told.settle(130.0)
    assert told.view.device("g00").state == "healthy"


def test_monitor_mode_only_says_it() -> None:
    told = Told(replace(POLICY, mode="monitor"), CLUSTER, ecc("g00", 10.0, rows=90))
    decision = told.tell(ecc("g00", 50.0, sbe=400, dbe=0, rows=90), ecc("g00", 60.0, sbe=500, dbe=1, rows=90))
    assert all_of(told, Restrict) == []
    assert {type(held.action) for held in decision.held} >= {Isolate}


def test_growth_of_minutes_and_of_days_is_known_though_few_readings_are_kept() -> None:
    """A count every 30 s for a week, and a reset in between that loses nothing."""
    evidence, each_s, resets_at = Evidence(), 30.0, 9000
    for n in range(7 * 2880 + 1):
        reading = ecc("g00", n * each_s, sbe=n if n < resets_at else n - resets_at)
        evidence = evidence.with_reading(reading)
    assert len(evidence.readings) <= 64
    now = evidence.readings[-1].at
    for window_s in (300.0, 3600.0, 21_600.0, 86_400.0, 604_800.0):
        true = window_s / each_s
        assert true - 1 <= evidence.growth("sbe", now - window_s) <= 1.25 * true, window_s


# --- mended ----------------------------------------------------------------------------------------------------------


def lost(policy: object = POLICY) -> Told:
    told = Told(policy, CLUSTER, xid(79, "g00", 10.0))  # type: ignore[arg-type]
    told.settle(20.0)
    return told


def test_what_a_reboot_mends_is_rebooted_when_it_is_out() -> None:
    told = lost()
    (repair,) = all_of(told, Repair)
    assert (repair.node, repair.gpu, repair.how) == ("n0", "g00", "reboot")  # type: ignore[attr-defined]
    assert told.view.device("g00").state == "isolated"
    told.settle(100.0)
    assert told.view.device("g00").state == "healthy"
    assert all(incident.closed for incident in told.view.incidents.values())


def test_what_fails_again_within_a_day_is_left_to_a_person() -> None:
    told = lost()
    told.settle(100.0)
    told.tell(xid(79, "g00", 200.0))
    told.settle(210.0)
    assert told.view.device("g00").state == "isolated"
    assert len(all_of(told, Repair)) == 1
    later = lost()
    later.settle(100.0)
    later.tell(xid(79, "g00", 100.0 + 90_000))
    later.settle(100.0 + 90_010)
    assert len(all_of(later, Repair)) == 2


def test_a_repair_that_fails_pages_and_one_that_nobody_can_do_changes_nothing() -> None:
    for outcome, pages in (("refused", 2), ("unsupported", 1)):
        told = lost()
        told.settle(100.0, outcome)
        assert told.view.device("g00").state == "isolated"
        assert len(all_of(told, Page)) == pages
        told.tell(order_return("g00", 200.0))
        told.settle(210.0)
        assert told.view.device("g00").state == "healthy"


def test_a_policy_orders_no_repair_that_it_does_not_name() -> None:
    for automatic in ((), ("reset",)):
        told = lost(replace(POLICY, mending=replace(POLICY.mending, automatic=automatic)))
        assert all_of(told, Repair) == []


def test_while_paused_the_repair_waits() -> None:
    told = Told(POLICY, CLUSTER, xid(79, "g00", 10.0), OrderGiven(at=15.0, what="pause", who="kim"))
    told.settle(20.0)
    assert told.view.device("g00").state == "isolated"
    assert all_of(told, Repair) == []
    told.tell(OrderGiven(at=30.0, what="resume", who="kim"))
    assert len(all_of(told, Repair)) == 1


def test_what_must_be_looked_at_first_is_reset_and_stays_out() -> None:
    told = Told(POLICY, CLUSTER, xid(48, "g00", 10.0))
    told.settle(20.0)
    (repair,) = all_of(told, Repair)
    assert (repair.how, repair.readmit) == ("reset", False)  # type: ignore[attr-defined]
    told.settle(100.0)
    assert told.view.device("g00").state == "isolated"
    (_, page) = all_of(told, Page)
    assert "stays out until it was looked at" in page.text  # type: ignore[attr-defined]
    told.tell(order_return("g00", 200.0))
    told.settle(210.0)
    assert told.view.device("g00").state == "healthy"


def test_a_reboot_that_would_do_is_not_enough_beside_an_error_that_must_be_looked_at() -> None:
    told = Told(POLICY, CLUSTER, xid(79, "g00", 10.0), xid(48, "g00", 11.0))
    told.settle(20.0)
    (repair,) = all_of(told, Repair)
    assert (repair.how, repair.readmit) == ("reboot", False)  # type: ignore[attr-defined]
