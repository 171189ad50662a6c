"""Each guard alone: what it takes out, when that may be tried again, and what it never holds up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.core.builders import CLUSTER, DEMO, NODES, Told, changed, kinds, running, xid

from medevac.catalog.policy import load_policy
from medevac.core import events as ev
from medevac.core.actions import Isolate, JudgeCheckpoint, Page, StartAttempt, StopAttempt
from medevac.core.decision import Decision, Trigger
from medevac.core.guards import screen, touches
from medevac.core.policy import Policy

LOOSE = changed(
    DEMO,
    budget={"cluster_share": 1.0, "floor_share": 0.0, "rack_share": 1.0, "nvlink_share": 1.0, "new_in_window": 1000},
)
TRIGGER = Trigger(machine="device", who="g00", on="critical")


def held(decision: Decision) -> list[tuple[str, str]]:
    return [(one.guard, type(one.action).__name__) for one in decision.held]


def fail(told: Told, *gpus: str, at: float = 10.0) -> Decision:
    """These GPUs meet an error one after the other; the scheduler takes each out at once where it may."""
    decision = Decision(id="", cause=0, at=0.0)
    for n, gpu in enumerate(gpus):
        decision = told.tell(xid(79, gpu, at + n))
        told.settle(at + n)
    return decision


def out(told: Told) -> list[str]:
    return sorted(name for name, device in told.view.devices.items() if device.state == "isolated")


def test_a_pause_holds_everything_that_touches_and_is_over_with_resume() -> None:
    told = running(Told(DEMO))
    told.tell(ev.OrderGiven(at=5.0, what="pause", who="alex"))
    decision = told.tell(xid(79, "g00", 10.0))
    assert sorted(held(decision)) == [("paused", "Isolate"), ("paused", "StopAttempt")]
    assert kinds(decision.actions) == ["Page"]
    assert told.view.jobs["job"].state == "running"
    decision = told.tell(ev.OrderGiven(at=20.0, what="resume", who="alex"))
    assert {"Isolate", "StopAttempt"} <= set(kinds(decision.actions))
    assert not told.view.held


def test_monitor_mode_holds_everything_that_touches_for_ever() -> None:
    told = running(Told(load_policy("demo", "monitor")))
    decision = told.tell(xid(79, "g00", 10.0))
    assert sorted(held(decision)) == [("monitor-only", "Isolate"), ("monitor-only", "StopAttempt")]
    assert all(one.until is None for one in decision.held)
    assert told.tell(ev.TimePassed(at=1e6)).held == ()


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        (changed(LOOSE, budget={"cluster_share": 0.25}), 3),
        (changed(LOOSE, budget={"cluster_share": 0.0, "cluster_least": 2}), 2),
        (changed(LOOSE, budget={"floor_share": 0.75}), 3),
        (changed(LOOSE, budget={"new_in_window": 5}), 5),
    ],
)
def test_no_more_out_than_the_budget(policy: Policy, most: int) -> None:
    told = Told(policy, CLUSTER)
    every = [gpu.uuid for node in NODES for gpu in node.gpus]
    fail(told, *every)
    assert len(out(told)) == most
    assert len(told.view.held) == len(every) - most


def test_a_rack_has_a_budget_of_its_own() -> None:
    told = Told(changed(LOOSE, budget={"rack_share": 0.5}), CLUSTER)
    fail(told, "g00", "g01", "g02", "g10", "g11", "g20")
    assert out(told) == ["g00", "g01", "g02", "g20"]
    assert {one.guard for one in told.view.held.values()} == {"budget"}


def test_an_nvlink_domain_has_a_budget_of_its_own() -> None:
    told = Told(
        changed(LOOSE, budget={"nvlink_share": 0.34}),
        replace(CLUSTER, nodes=tuple(replace(node, nvlink_domain=node.name) for node in NODES)),
    )
    fail(told, "g00", "g01", "g10")
    assert out(told) == ["g00", "g10"]


def test_each_partition_has_the_clusters_budget_of_its_own() -> None:
    """Of "big", n0 to n2, a third: one node; of "all", four nodes of four: as the cluster."""
    big = tuple(replace(node, partitions=("all", "big") if node.name != "n3" else ("all",)) for node in NODES)
    policy = changed(LOOSE, budget={"unit": "node", "cluster_share": 0.5})
    told = Told(policy, replace(CLUSTER, nodes=big))
    decision = fail(told, "g00", "g10")
    assert out(told) == ["g00"]
    assert [one.why for one in decision.held] == ["1 of 3 are out in partition big, its most is 1"]
    assert not held(fail(told, "g30", at=20.0))
    told = Told(changed(policy, budget={"cluster_least": 2}), replace(CLUSTER, nodes=big))
    assert not held(fail(told, "g00", "g10"))


def by_people(*names: str) -> ev.ClusterSeen:
    """The nodes of these names are out by somebody else's hand: all that is told of them is what has changed."""
    changed_ = tuple(replace(node, out=True) for node in NODES if node.name in names)
    return replace(CLUSTER, nodes=changed_, whole=False)


@pytest.mark.parametrize("budget", [{"cluster_share": 0.5}, {"floor_share": 0.5}, {"rack_share": 0.5}])
@pytest.mark.parametrize("unit", ["node", "gpu"])
def test_what_people_took_out_counts(unit: str, budget: dict[str, float]) -> None:
    """And costs nothing more where it fails as well; what comes back counts no more."""
    told = Told(changed(LOOSE, budget={"unit": unit, **budget}), CLUSTER, by_people("n0", "n1"))
    assert tuple(told.view.nodes) == tuple(node.name for node in NODES)
    assert held(told.tell(replace(xid(79, "g00", 9.0), gpu=None))) == []
    told.settle(9.0)
    rack = budget.get("rack_share")
    assert bool(held(told.tell(replace(xid(79, "g20", 10.0), gpu=None)))) is (not rack)
    told = Told(told.policy, CLUSTER, by_people("n0", "n2"))
    assert held(told.tell(replace(xid(79, "g10", 10.0), gpu=None))) == [("budget", "Isolate")]
    told.tell(CLUSTER)
    assert "Isolate" in kinds(told.tell(ev.TimePassed(at=60.0)).actions)


def test_a_job_recovers_and_nodes_come_back_while_people_have_spent_the_budget() -> None:
    told = running(Told(changed(LOOSE, budget={"unit": "node", "cluster_share": 0.25})))
    fail(told, "g00")
    told.tell(by_people("n2", "n3"))
    decision = told.tell(xid(79, "g10", 20.0))
    assert held(decision) == [("budget", "Isolate")]
    back = told.tell(ev.OrderGiven(at=21.0, what="return", who="alex", target="g00"))
    assert kinds(back.actions) == ["GiveBack"]
    assert told.view.jobs["job"].state != "running", "it was stopped for its fault"


def test_nodes_are_counted_where_nodes_are_the_unit() -> None:
    told = Told(changed(LOOSE, budget={"unit": "node", "cluster_share": 0.25}), CLUSTER)
    lost = [replace(xid(79, f"g{n}0", 10.0 + n), gpu=None) for n in range(4)]
    told.tell(*lost[:1])
    told.settle(11.0)
    decision = told.tell(lost[1])
    assert out(told) == ["n0"]
    assert held(decision) == [("budget", "Isolate")]


def test_a_gpu_takes_its_node_along_where_nodes_are_counted() -> None:
    told = Told(changed(LOOSE, budget={"unit": "node", "cluster_share": 0.25}), CLUSTER)
    assert held(fail(told, "g00", "g10")) == [("budget", "Isolate")]
    assert not held(fail(told, "g01", at=20.0)), "its node is out already"
    assert out(told) == ["g00", "g01"]


def test_a_rack_of_nodes_has_a_budget_whichever_gpus_fail() -> None:
    told = Told(changed(LOOSE, budget={"unit": "node", "rack_share": 0.5}), CLUSTER)
    assert held(fail(told, "g00", "g20", "g10")) == [("budget", "Isolate")]
    assert out(told) == ["g00", "g20"]


def test_a_node_takes_all_its_gpus_along_where_gpus_are_counted() -> None:
    told = Told(changed(LOOSE, budget={"cluster_share": 0.5}), CLUSTER)
    fail(told, "g00", "g10", "g20", "g30")
    assert held(told.tell(replace(xid(79, "g00", 20.0), gpu=None))) == []
    told.settle(20.0)
    assert held(told.tell(replace(xid(79, "g10", 21.0), gpu=None))) == [("budget", "Isolate")]
    assert out(told) == ["g00", "g10", "g20", "g30", "n0"]


def test_the_rate_is_over_when_its_time_is() -> None:
    told = Told(changed(LOOSE, budget={"new_in_window": 2, "window_s": 100.0}), CLUSTER)
    decision = fail(told, "g00", "g01", "g02")
    assert [(one.guard, one.until) for one in decision.held] == [("rate", 110.0)]
    assert told.view.deadline() == 110.0
    decision = told.tell(ev.TimePassed(at=110.1))
    assert kinds(decision.actions)[0] == "Isolate"


def test_what_is_held_is_tried_again_and_passes_once_there_is_room() -> None:
    told = Told(changed(LOOSE, budget={"cluster_share": 0.0, "cluster_least": 1}), CLUSTER)
    fail(told, "g00", "g20")
    assert out(told) == ["g00"]
    again = told.view.deadline()
    assert again is not None
    assert held(told.tell(ev.TimePassed(at=again))) == [("budget", "Isolate")]
    told.tell(ev.OrderGiven(at=30.0, what="return", who="alex", target="g00"))
    told.settle(30.1)
    again = told.view.deadline()
    assert again is not None
    assert kinds(told.tell(ev.TimePassed(at=again)).actions)[0] == "Isolate"


def test_giving_back_works_while_the_budget_is_spent() -> None:
    told = Told(changed(LOOSE, budget={"cluster_share": 0.0, "cluster_least": 1}), CLUSTER)
    fail(told, "g00", "g20")
    decision = told.tell(ev.OrderGiven(at=30.0, what="return", who="alex", target="g00"))
    assert kinds(decision.actions) == ["GiveBack"]


def test_what_is_out_softly_may_go_out_hard_though_the_budget_is_spent() -> None:
    told = Told(changed(LOOSE, budget={"cluster_share": 0.0, "cluster_least": 1}), CLUSTER)
    told.tell(*(xid(63, "g00", 10.0, row=str(row)) for row in range(11)))
    told.settle(10.5)
    decision = fail(told, "g00", at=11.0)
    assert [action.mode for action in decision.actions if isinstance(action, Isolate)] == ["hard"]


def test_a_job_leaves_a_sick_gpu_though_its_isolation_is_held() -> None:
    told = running(Told(changed(LOOSE, budget={"new_in_window": 0})))
    decision = told.tell(xid(79, "g00", 10.0))
    assert held(decision) == [("rate", "Isolate")]
    assert "StopAttempt" in kinds(decision.actions)
    told.tell(ev.AttemptEnded(at=11.0, job="job", attempt=1, code=137, why="stopped"))
    decision = told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    (start,) = (action for action in decision.actions if isinstance(action, StartAttempt))
    assert "g00" not in {gpu for rank in start.ranks for gpu in rank.gpus}


def test_only_what_medevac_took_out_is_given_back() -> None:
    told = Told(DEMO, CLUSTER)
    assert told.tell(ev.OrderGiven(at=1.0, what="return", who="alex", target="g00")).empty()


def test_no_start_from_files_that_differ() -> None:
    told = running(Told(DEMO))
    told.tell(ev.CheckpointFound(at=3.0, job="job", step=7, why="medevac.json: is torn"))
    start = StartAttempt(id="s", job="job", attempt=2, resume_from=7)
    assert [one.guard for one in screen(told.view, [start], TRIGGER, DEMO)] == ["clean-lineage"]
    assert screen(told.view, [replace(start, resume_from=None)], TRIGGER, DEMO) == []


def test_what_touches_the_world() -> None:
    assert not touches(StartAttempt(id="s", job="job", attempt=1))
    assert touches(StartAttempt(id="s", job="job", attempt=2))
    assert touches(StopAttempt(id="s", job="job", attempt=1))
    assert touches(JudgeCheckpoint(id="s", job="job", step=1, state="clean"))
    assert not touches(Page(id="s", level="info", text="x"))


def test_a_stop_that_was_held_is_not_for_the_next_attempt() -> None:
    told = running(Told(DEMO))
    told.tell(ev.OrderGiven(at=5.0, what="pause", who="alex"))
    told.tell(xid(79, "g00", 10.0))
    told.tell(ev.AttemptEnded(at=11.0, job="job", attempt=1, code=1))
    told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    decision = told.tell(ev.OrderGiven(at=30.0, what="resume", who="alex"))
    assert "StartAttempt" in kinds(decision.actions)
    assert "StopAttempt" not in kinds(decision.actions)
    assert told.view.jobs["job"].state == "starting"
    assert not told.view.held


def test_a_persons_stop_comes_before_the_start_that_was_held_with_it() -> None:
    told = running(Told(DEMO))
    told.tell(ev.OrderGiven(at=5.0, what="pause", who="alex"), ev.AttemptEnded(at=11.0, job="job", attempt=1, code=1))
    told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    told.tell(ev.OrderGiven(at=20.0, what="stop", who="alex", target="job"))
    decision = told.tell(ev.OrderGiven(at=30.0, what="resume", who="alex"))
    assert "StartAttempt" not in kinds(decision.actions)
    assert told.view.jobs["job"].state == "ended"
