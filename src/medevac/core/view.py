"""Everything that deciding looks at: folded from events and decisions, never changed in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from immutables import Map
from msgspec.structs import replace

from medevac.core.actions import (
    AnyAction,
    ExamineAttempt,
    JudgeCheckpoint,
    PointClean,
    StartAttempt,
    StopAttempt,
    VerifyCheckpoint,
)
from medevac.core.decision import Decision, Diagnosed, Finding, Held, Incident, Moved, Part, Struct, Trigger
from medevac.core.events import (
    ActionSettled,
    AnyEvent,
    AttemptEnded,
    AttemptExamined,
    AttemptStarted,
    AttributionHeard,
    CheckpointFound,
    CheckpointJudged,
    CheckpointSealed,
    CheckpointVerified,
    ClusterSeen,
    CorruptionSeen,
    EccCounted,
    EnvironmentSeen,
    FaultSeen,
    JobSubmitted,
    Node,
    OrderGiven,
    OutputRead,
    ResumedFrom,
    StepReported,
    TimePassed,
    WatchBegan,
)
from medevac.core.evidence import Evidence
from medevac.core.failure import failed_as, past_end
from medevac.core.job_recovery import ALIVE
from medevac.core.jobs import Job
from medevac.core.lineage import Doubt, some_gpu_of
from medevac.core.node_lifecycle import DEVICE
from medevac.core.policy import Policy
from medevac.core.progress import HangRule, Pace
from medevac.core.slowness import Slowness
from medevac.core.straggler import SlowRule

T = TypeVar("T")
MOST_ENVIRONMENT = 64
MOST_INCIDENTS = 500
DENIED = {"no-place", "refused", "refused-often"}
GOES_ON = {"due", "nothing-saved", "good-checkpoint", "no-clean"}


def ordered(values: Mapping[str, T]) -> list[tuple[str, T]]:
    """The items in the order of their keys."""
    return sorted(values.items(), key=lambda item: item[0])


class Device(Struct, frozen=True, kw_only=True):
    """A GPU (by UUID) or a node (by name) and where it stands in its life."""

    name: str
    node: str
    state: str = DEVICE.initial
    since: float = 0.0
    cause: str = ""
    mended: float = 0.0


class View(Struct, frozen=True, kw_only=True):
    """The world as the events tell it. `seq` is the place in the log of the newest event, `now` its time.

    A Map's own order differs from one process to the next: whatever decides goes through `ordered`. `nodes` keeps the
    cluster's order.
    """

    seq: int = 0
    now: float = 0.0
    paused: bool = False
    hang: HangRule = HangRule()
    slow: SlowRule = SlowRule()
    nodes: dict[str, Node] = {}
    owners: Map[str, str] = Map()
    by_pci: Map[tuple[str, str], str] = Map()
    evidence: Map[str, Evidence] = Map()
    environment: tuple[EnvironmentSeen, ...] = ()
    devices: Map[str, Device] = Map()
    doubts: Map[str, tuple[Doubt, ...]] = Map()
    jobs: Map[str, Job] = Map()
    incidents: Map[str, Incident] = Map()
    pending: Map[str, AnyAction] = Map()
    held: Map[str, Held] = Map()
    isolations: tuple[tuple[float, str], ...] = ()
    settled: AnyAction | None = None
    retried: tuple[Trigger, ...] = ()

    def apply(self, event: AnyEvent, seq: int) -> View:
        """The view with one more event of the log."""
        now = max(self.now, event.seen_at or event.at)
        view = replace(self, seq=seq, now=now, settled=None, retried=())
        match event:
            case ClusterSeen():
                return view._with_cluster(event)
            case FaultSeen() | EccCounted():
                return view._with_evidence(event)
            case EnvironmentSeen():
                return replace(view, environment=(*view.environment, event)[-MOST_ENVIRONMENT:])
            case JobSubmitted():
                if event.job in view.jobs:
                    return view
                return view._with_job(
                    event.job, Job(spec=event, pace=Pace(rule=view.hang), slowness=Slowness(rule=view.slow), since=now)
                )
            case (
                AttemptStarted()
                | AttemptEnded()
                | StepReported()
                | ResumedFrom()
                | CorruptionSeen()
                | CheckpointSealed()
                | CheckpointFound()
                | CheckpointVerified()
                | CheckpointJudged()
                | OutputRead()
                | AttemptExamined()
                | AttributionHeard()
            ):
                job = view.jobs.get(event.job)
                if job and isinstance(event, AttemptStarted) and event.attempt > job.attempt and job.state not in ALIVE:
                    job = job.begun(event)
                return view._with_job(event.job, job.apply(event)) if job else view
            case ActionSettled():
                return view._with_outcome(event)
            case WatchBegan():
                waiting = {name: replace(job, pace=job.pace.looked_away(now)) for name, job in view.jobs.items()}
                return replace(view, jobs=view.jobs.update(waiting))
            case OrderGiven():
                return view._with_order(event)
            case TimePassed():
                return view._with_due_retries()

    def after(self, decision: Decision) -> View:
        """The view with a decision taken: states moved, doubts cast, actions pending."""
        view = self
        for finding in decision.findings:
            view = view._with_finding(finding)
        for incident in decision.incidents:
            view = view._with_incident(incident)
        for diagnosed in decision.diagnoses:
            view = view._with_end(diagnosed)
        for moved in decision.moved:
            view = view._with_move(moved, decision.at)
        for action in decision.actions:
            view = view._with_action(action, decision.at)
        for held in decision.held:
            view = view._with_held(held)
        return view

    def deadline(self) -> float | None:
        """When time alone will make a difference next; None: never."""
        due = [job.until for job in self.jobs.values() if job.until is not None]
        due += [when for job in self.jobs.values() if (when := self.look_deadline(job)) is not None]
        due += [held.until for held in self.held.values() if held.until is not None]
        return min(due, default=None)

    def hang_deadline(self, job: Job) -> float | None:
        """When the running attempt is called hung; None for a job that never told of its progress, and for one whose
        stop a guard holds back already.
        """
        if job.state not in {"proving", "running"} or not job.pace.steps:
            return None
        stops = (held.action for held in self.held.values() if isinstance(held.action, StopAttempt))
        if any(stop.job == job.spec.job and stop.attempt == job.attempt for stop in stops):
            return None
        return job.pace.deadline()

    def look_deadline(self, job: Job) -> float | None:
        """When the attempt must be thought of next: named, looked at again, or stopped unconfirmed."""
        named = self.hang_deadline(job)
        return None if named is None else job.looks.due(job.pace.since, named, job.pace.rule)

    def part(self, event: FaultSeen | EccCounted) -> Part:
        """The part that an event speaks of: the GPU where its identity is known, else its node."""
        uuid = event.gpu or self.by_pci.get((event.node, event.pci or ""), "")
        if uuid:
            return Part(domain="gpu", name=uuid, node=event.node, pci=self._pci(event.node, uuid) or event.pci or "")
        return Part(domain="node", name=event.node, node=event.node, pci=event.pci or "")

    def _pci(self, node: str, uuid: str) -> str:
        """The address that the cluster gives a GPU: whatever a source leaves out, one GPU is one part."""
        home = self.nodes.get(node)
        return next((gpu.pci for gpu in home.gpus if gpu.uuid == uuid), "") if home else ""

    def node_of(self, part: Part) -> Node | None:
        """The node that a part belongs to, where it is known."""
        return self.nodes.get(part.node or self.owners.get(part.name, part.name))

    @classmethod
    def under(cls, policy: Policy) -> View:
        """Before any event, with the numbers of a policy."""
        return cls(hang=policy.hang, slow=policy.slow)

    def device(self, name: str) -> Device:
        """A GPU or node by name; one that was never touched is as healthy as it was found."""
        return self.devices.get(name) or Device(name=name, node=self.owners.get(name, name))

    def _with_cluster(self, event: ClusterSeen) -> View:
        nodes = ({} if event.whole else self.nodes) | {node.name: node for node in event.nodes}
        owners = {gpu.uuid: node.name for node in nodes.values() for gpu in node.gpus}
        places = {(node.name, gpu.pci): gpu.uuid for node in nodes.values() for gpu in node.gpus if gpu.pci}
        return replace(self, nodes=nodes, owners=Map(owners), by_pci=Map(places))

    def _with_evidence(self, event: FaultSeen | EccCounted) -> View:
        name = self.part(event).name
        known = self.evidence.get(name, Evidence())
        more = known.with_fact(event) if isinstance(event, FaultSeen) else known.with_reading(event)
        return self if more is known else replace(self, evidence=self.evidence.set(name, more))

    def _with_job(self, name: str, job: Job) -> View:
        return replace(self, jobs=self.jobs.set(name, job))

    def _with_outcome(self, event: ActionSettled) -> View:
        action = self.pending.get(event.action)
        if action is None or event.outcome == "unknown":
            return self
        return replace(self, pending=self.pending.delete(event.action), settled=action)

    def _with_order(self, event: OrderGiven) -> View:
        if event.what == "pause":
            return replace(self, paused=True)
        if event.what == "resume":
            return replace(self, paused=False)._without_held(lambda held: held.guard == "paused")
        job = self.jobs.get(event.target)
        if event.what == "resume-from" and job:
            return self._with_job(event.target, replace(job, trusted=event.step, ordered=event.step))
        return self

    def _with_end(self, diagnosed: Diagnosed) -> View:
        job = self.jobs[diagnosed.job]
        end = past_end(diagnosed.verdict, job.reached)
        alike = failed_as(diagnosed.verdict, job.ended.code) if job.ended and not job.ended.why else ""
        job = replace(job, ends=(*job.ends, end)[-16:], verdict=diagnosed, failed_as=alike)
        return self._with_job(diagnosed.job, job)

    def _with_held(self, held: Held) -> View:
        """A guard's no: what waited for a time does not come due meanwhile."""
        view = replace(self, held=self.held.set(held.action.id, held))
        waits = held.trigger.machine == "job" and held.trigger.on in GOES_ON
        job = view.jobs.get(held.trigger.who) if waits else None
        return view._with_job(held.trigger.who, replace(job, until=None)) if job else view

    def _with_due_retries(self) -> View:
        return self._without_held(lambda held: held.until is not None and self.now >= held.until)

    def _without_held(self, wanted: Callable[[Held], bool]) -> View:
        """Take out what may be tried again now; deciding finds it in `retried`."""
        due = {key: held for key, held in ordered(self.held) if wanted(held)}
        out = dict(sorted(due.items(), key=lambda item: _turn(item[1].trigger)))
        if not out:
            return self
        kept = Map({key: held for key, held in self.held.items() if key not in out})
        return replace(self, held=kept, retried=tuple(dict.fromkeys(held.trigger for held in out.values())))

    def _with_incident(self, incident: Incident) -> View:
        """One more, or one changed; beyond the bound the oldest that keeps nothing out of service is forgotten."""
        incidents = self.incidents.set(incident.id, incident)
        if len(incidents) > MOST_INCIDENTS:
            idle = [i for i in incidents.values() if i.id != incident.id and (i.closed or not i.isolates())]
            oldest = min(idle, key=lambda i: (i.last, i.id), default=None)
            incidents = incidents.delete(oldest.id) if oldest else incidents
        return replace(self, incidents=incidents)

    def _with_finding(self, finding: Finding) -> View:
        part = finding.part
        if finding.doubt_from is None or part.domain not in {"gpu", "node"}:
            return self
        doubt = Doubt(since=finding.doubt_from, fault_at=finding.at, why=finding.rule)
        doubts = self.doubts
        for name in (part.name, some_gpu_of(part.node)) if part.domain == "gpu" else (part.name,):
            doubts = doubts.set(name, (*doubts.get(name, ()), doubt)[-8:])
        return replace(self, doubts=doubts)

    def _with_move(self, moved: Moved, at: float) -> View:
        who, on = moved.trigger.who, moved.trigger.on
        kept = {key: held for key, held in self.held.items() if not _settles(moved.trigger, held.trigger)}
        view = self if len(kept) == len(self.held) else replace(self, held=Map(kept))
        if moved.trigger.machine == "job":
            return view._with_job(who, _moved(view.jobs[who], moved, at))
        known = view.device(who)
        mended = at if on in {"mended", "repaired"} else known.mended
        device = replace(known, state=moved.target, since=at, cause=moved.trigger.cause, mended=mended)
        view = replace(view, devices=view.devices.set(who, device))
        if moved.target in {"soft-draining", "hard-draining"}:
            view = replace(view, isolations=(*view.isolations, (at, who))[-256:])
        return view._returned(who, at) if on in {"settled", "mended"} and moved.target == "healthy" else view

    def _returned(self, name: str, at: float) -> View:
        """Given back: earlier evidence, doubt and blame end here, incidents with nothing left out close."""
        doubts = self.doubts
        for each in (name, some_gpu_of(self.owners.get(name, name))):
            ended = tuple(d if d.until is not None else replace(d, until=at) for d in doubts.get(each, ()))
            doubts = doubts.set(each, ended)
        view = replace(self, doubts=doubts, evidence=self.evidence.set(name, Evidence()))
        for key, incident in ordered(view.incidents):
            names = {finding.part.name for finding in incident.findings}
            if name in names and all(view.device(each).state == "healthy" for each in names):
                view = replace(view, incidents=view.incidents.set(key, replace(incident, closed=True)))
        for key, job in ordered(view.jobs):
            if name in job.culprits:
                others = tuple(culprit for culprit in job.culprits if culprit != name)
                view = view._with_job(key, replace(job, culprits=others))
        return view

    def _with_action(self, action: AnyAction, at: float) -> View:
        view = replace(self, pending=self.pending.set(action.id, action))
        job = view.jobs.get(getattr(action, "job", ""))
        if job is None:
            return view
        match action:
            case StartAttempt():
                return view._with_job(action.job, job.begun(action))
            case ExamineAttempt():
                looks = job.looks.after(job.pace.since, at, job.pace.rule)
                return view._with_job(action.job, replace(job, looks=looks))
            case VerifyCheckpoint():
                return view._with_job(action.job, replace(job, chosen=action.step))
            case PointClean():
                return view._with_job(action.job, replace(job, pointed=action.step))
            case JudgeCheckpoint():
                known = job.checkpoints[action.step]
                known = replace(known, written=action.state, written_at=at, written_why=action.reason)
                return view._with_job(action.job, replace(job, checkpoints=job.checkpoints.set(action.step, known)))
            case _:
                return view


def _turn(trigger: Trigger) -> int:
    """In which order what was held back is tried again: devices, then what a person ordered, then the rest."""
    if trigger.machine == "device":
        return 0
    return 1 if trigger.on.startswith("order-") else 2


def _settles(moved: Trigger, held: Trigger) -> bool:
    """Whether a step leaves nothing of what was held back: the same, or meant for a state that its job has left."""
    if held == moved:
        return True
    same_job = held.machine == moved.machine == "job" and held.who == moved.who
    return same_job and held.on != "judged" and not held.on.startswith("order-")


def _moved(job: Job, moved: Moved, at: float) -> Job:
    denied = moved.trigger.on in DENIED
    if denied:
        job = _denied(job, moved)
    if job.state in ALIVE and moved.target not in ALIVE and not denied:
        passed = job.passed()
        job = replace(
            job,
            best=max(job.best, job.reached),
            restarts=job.restarts + 1,
            unproven=0 if passed else job.unproven + (0 if job.spared() else 1),
        )
    if moved.trigger.blames:
        job = replace(job, culprits=(*job.culprits, *moved.trigger.blames)[-32:])
    trigger = moved.trigger
    cause = "" if trigger.on == "progress" else trigger.cause or job.cause
    on, why = trigger.on, trigger.why
    if (moved.source, on) == ("leaving", "due"):
        on, why = job.on, f"{job.why}; it did not leave in time"
    if on == "order-release":
        job = replace(job, restarts=0, unproven=0)
    if on == "progress":
        job = replace(job, failed_as="")
    if on in {"order-release", "started"}:
        job = replace(job, denied="", denials=0)
    return replace(job, state=moved.target, since=at, until=moved.until, on=on, why=why, cause=cause)


def _denied(job: Job, moved: Moved) -> Job:
    """A start that came to nothing is no attempt: numbers go on from the last one that ran."""
    on = moved.trigger.on
    return replace(
        job,
        attempt=job.attempt - (moved.source == "starting"),
        denied=on,
        denials=job.denials + 1 if job.denied == on else 1,
    )
