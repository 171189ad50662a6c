"""Short ways to say what happened, for tests of the core. Times are seconds; GPUs are `g<node><index>`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from medevac.catalog.policy import load_policy
from medevac.controller.step import advance
from medevac.core import events as ev
from medevac.core.decision import Decision
from medevac.core.evidence import Evidence
from medevac.core.policy import Policy, Rule, Seen
from medevac.core.view import View
from medevac.ports.store import EventRecord

DEMO = load_policy("demo")
NODES = tuple(
    ev.Node(
        name=f"n{n}",
        rack=f"r{n // 2}",
        feed=f"f{n // 2}",
        gpus=tuple(ev.Gpu(index=i, uuid=f"g{n}{i}", pci=f"0000:{i + 1}0:00.0") for i in range(3)),
    )
    for n in range(4)
)
CLUSTER = ev.ClusterSeen(at=0.0, nodes=NODES)


def xid(code: int, gpu: str, at: float, **details: ev.Value) -> ev.FaultSeen:
    return ev.FaultSeen(at=at, kind="xid", code=code, node=f"n{gpu[1]}", gpu=gpu, details=details)


def ecc(gpu: str, at: float, *, sbe: int = 0, dbe: int = 0, rows: int = 0) -> ev.EccCounted:
    return ev.EccCounted(at=at, node=f"n{gpu[1]}", gpu=gpu, sbe=sbe, dbe=dbe, remapped_rows=rows)


def of(*events: ev.FaultSeen | ev.EccCounted) -> Evidence:
    """What these events leave of evidence."""
    evidence = Evidence()
    for event in events:
        evidence = evidence.with_fact(event) if isinstance(event, ev.FaultSeen) else evidence.with_reading(event)
    return evidence


def rule(*when: object, **more: object) -> Rule:
    """A rule with these predicates."""
    given = {"id": "a-rule", "meaning": "something", "severity": "warning", "source": "a test", **more}
    return Rule(**given, when=when)  # type: ignore[arg-type]


HARD = rule(Seen(kind="xid", codes=(48,)), severity="critical", response="hard", doubts=True, family="memory")


class Told:
    """A view that events and decisions made, one after the other."""

    def __init__(self, policy: Policy = DEMO, *events: ev.AnyEvent) -> None:
        self.policy = policy
        self.view = View.under(policy)
        self.decisions: list[Decision] = []
        self.events: list[ev.AnyEvent] = []
        self.tell(*events)

    def tell(self, *events: ev.AnyEvent) -> Decision:
        """More events; the decision on the last of them."""
        decision = Decision(id="", cause=0, at=0.0)
        for event in events:
            self.view, decision = advance(self.view, EventRecord(seq=self.view.seq + 1, event=event), self.policy)
            self.events.append(event)
            self.decisions.append(decision)
        return decision

    def settle(self, at: float, outcome: str = "done") -> None:
        """All that is pending comes out so."""
        for action in sorted(self.view.pending):
            self.tell(ev.ActionSettled(at=at, action=action, outcome=outcome))  # type: ignore[arg-type]


def changed(policy: Policy, **sections: dict[str, object]) -> Policy:
    """The policy with other numbers in its sections."""
    return replace(policy, **{name: replace(getattr(policy, name), **values) for name, values in sections.items()})


def running(told: Told, *, job: str = "job", ranks: int = 8, at: float = 1.0) -> Told:
    """The job in its first attempt, at step 1."""
    policy = ev.JobPolicy(checkpoint_dir="/c")
    told.tell(CLUSTER, ev.JobSubmitted(at=at, job=job, ranks=ranks, policy=policy), ev.TimePassed(at=at))
    told.tell(ev.AttemptStarted(at=at, job=job, attempt=1, ranks=told.view.jobs[job].ranks))
    told.settle(at)
    told.tell(ev.StepReported(at=at + 1, job=job, attempt=1, step=1))
    return told


def sealed(told: Told, step: int, at: float, *, job: str = "job", parent: int | None = None) -> ev.CheckpointSealed:
    """A checkpoint that all ranks of the running attempt took part in."""
    places = told.view.jobs[job].ranks
    return ev.CheckpointSealed(
        at=at,
        job=job,
        attempt=told.view.jobs[job].attempt,
        step=step,
        parent=parent,
        ranks=tuple(ev.SealRank(rank=p.rank, node=p.node, gpu_uuid=p.gpus[0]) for p in places if p.gpus),
    )


def kinds(actions: Iterable[object]) -> list[str]:
    """The names of what is done."""
    return [type(action).__name__ for action in actions]
