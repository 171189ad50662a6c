"""The whole policy on one screen: what an event means, who is to blame, what should be done, what holds it back."""

from __future__ import annotations

from msgspec.structs import replace

from medevac.core import attempts, corruption, recover
from medevac.core.actions import AnyAction, GiveBack, Isolate, Page, Repair, Restrict
from medevac.core.correlate import caused, correlate, is_new
from medevac.core.decision import Decision, Diagnosed, Finding, Held, Moved, Trigger
from medevac.core.events import (
    ActionSettled,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointFound,
    CheckpointJudged,
    CheckpointSealed,
    CheckpointVerified,
    CorruptionSeen,
    EccCounted,
    EnvironmentSeen,
    FaultSeen,
    OrderGiven,
    OutputRead,
    ResumedFrom,
    StepReported,
    TimePassed,
)
from medevac.core.failure import explain, failing
from medevac.core.guards import harmless, screen
from medevac.core.hang import looks, named
from medevac.core.job_recovery import ALIVE
from medevac.core.node_lifecycle import DEVICE
from medevac.core.policy import Policy
from medevac.core.rules import findings
from medevac.core.slowness import findings as slow_findings
from medevac.core.view import View, ordered

LINEAGE = (
    CheckpointSealed
    | CheckpointFound
    | CheckpointVerified
    | CheckpointJudged
    | AttemptStarted
    | ResumedFrom
    | ActionSettled
    | OrderGiven
)
RESPONSES = {"hard": "critical", "soft": "pre-failure", "restrict": "low-score"}
PAGES = {"not-mended": "its repair failed", "repaired": "it was repaired and stays out until it was looked at"}


def decide(view: View, event: AnyEvent, policy: Policy) -> Decision:
    """What to make of `event`, which `view` has taken in already. Pure: the same answer for ever."""
    empty = Decision(id=f"D{view.seq}", cause=view.seq, at=view.now, policy=policy.digest)
    found = _found(view, event, policy)
    incidents = correlate(view, found, policy.correlation)
    if isinstance(event, EnvironmentSeen):
        incidents = caused(view, event, policy.correlation)
    decision = replace(empty, findings=found, incidents=incidents, diagnoses=_explained(view, event))
    work = view.after(decision)
    for trigger in _triggers(work, event, decision, policy):
        decision, work = _take(decision, work, trigger, policy)
    if isinstance(event, TimePassed):
        decision = _with(decision, replace(empty, actions=tuple(looks(work))))
    if _touches_lineage(event, decision):
        decision, work = _judge(decision, work, policy)
        for trigger in _second_thoughts(work, policy):
            decision, work = _take(decision, work, trigger, policy)
    return replace(decision, reason=_reason(decision))


def _found(view: View, event: AnyEvent, policy: Policy) -> tuple[Finding, ...]:
    if isinstance(event, StepReported):
        return _slow(view, event)
    if isinstance(event, CorruptionSeen):
        return corruption.findings(view.jobs.get(event.job), event)
    if isinstance(event, TimePassed):
        return named(view)
    if isinstance(event, OutputRead):
        return tuple(f for f in failing(view.jobs.get(event.job), event) if is_new(f, view, policy.correlation))
    if not isinstance(event, FaultSeen | EccCounted):
        return ()
    part = view.part(event)
    evidence = view.evidence.get(part.name)
    if evidence is None:
        return ()
    new = (f for f in findings(event, part, evidence, view.evidence, policy) if is_new(f, view, policy.correlation))
    return tuple(new)


def _slow(view: View, event: StepReported) -> tuple[Finding, ...]:
    """Ranks and jobs that became slow with this report."""
    job = view.jobs.get(event.job)
    news = job.slowness.news(event) if job and job.attempt == event.attempt else ()
    if job is None or not news:
        return ()
    ranks = job.ranks if job.spec.gpus_per_rank else ()  # a launcher's ranks are not its agents
    return slow_findings(event.job, ranks, news, event, job.slowness.rule)


def _explained(view: View, event: AnyEvent) -> tuple[Diagnosed, ...]:
    """Why an attempt failed that ended by itself, or hung."""
    job = view.jobs.get(event.job) if isinstance(event, AttemptEnded) else None
    if job is None or not isinstance(event, AttemptEnded) or event.attempt != job.attempt or job.state not in ALIVE:
        return ()
    ordered_stop = bool(event.why) and job.on not in {"hung", "non-finite"}
    if event.code in {0, attempts.DRAINED} or ordered_stop:
        return ()
    verdict = explain(job, event, [incident for _, incident in ordered(view.incidents)])
    return (Diagnosed(job=event.job, attempt=event.attempt, verdict=verdict),)


def _triggers(view: View, event: AnyEvent, decision: Decision, policy: Policy) -> list[Trigger]:
    """Devices first, so that a job is never placed on what is going out; then what was held back and may be tried."""
    incidents = sorted(view.incidents.values(), key=lambda i: (not i.closed, i.last, i.id))
    named = {f.part.name: i.id for i in incidents for f in i.findings}
    hardware = [
        Trigger(machine="device", who=f.part.name, on=RESPONSES[f.response], why=f.meaning, cause=named[f.part.name])
        for f in decision.findings
        if f.response in RESPONSES
    ]
    jobs = []
    for name, job in ordered(view.jobs):
        worst = recover.hit(job, decision.findings)
        if worst:
            why = f"{worst.part.name} on {worst.part.node}: {worst.meaning}"
            jobs.append(
                Trigger(machine="job", who=name, on=RESPONSES[worst.response], why=why, cause=named[worst.part.name])
            )
    verdict = decision.diagnoses[0].verdict if decision.diagnoses else None
    own = attempts.triggers(view, event, policy, verdict)
    return [*hardware, *_of_device(view, event, policy), *jobs, *own, *view.retried]


def _of_device(view: View, event: AnyEvent, policy: Policy) -> list[Trigger]:
    if isinstance(event, OrderGiven) and event.what == "return":
        return [Trigger(machine="device", who=event.target, on="order-return", why=f"by order of {event.who}")]
    action = view.settled
    if isinstance(event, ActionSettled) and isinstance(action, Isolate | GiveBack):
        on = "settled" if event.outcome == "done" else "refused"
        told = Trigger(machine="device", who=action.gpu or action.node, on=on, why=event.why, cause=action.cause)
        found = _mends(view, told, policy) if isinstance(action, Isolate) and on == "settled" else None
        return [told, replace(told, on="mendable", why=f"a {found.mends} may mend it")] if found else [told]
    if isinstance(event, ActionSettled) and isinstance(action, Repair) and event.outcome != "unsupported":
        on = ("mended" if action.readmit else "repaired") if event.outcome == "done" else "not-mended"
        return [
            Trigger(
                machine="device",
                who=action.gpu or action.node,
                on=on,
                why=event.why or action.reason,
                cause=action.cause,
            )
        ]
    return []


def _mends(view: View, isolated: Trigger, policy: Policy) -> Finding | None:
    """The finding that says what may bring back what was taken out: a reboot resets its GPUs as well."""
    device, incident = view.device(isolated.who), view.incidents.get(isolated.cause)
    if incident is None or (device.mended and view.now - device.mended < policy.mending.again_s):
        return None
    mine = [finding for finding in incident.findings if finding.mends and finding.part.name == isolated.who]
    wanted = min(mine, key=lambda finding: finding.mends != "reboot", default=None)
    return wanted if wanted and wanted.mends in policy.mending.automatic else None


def _take(decision: Decision, view: View, trigger: Trigger, policy: Policy) -> tuple[Decision, View]:
    """One trigger followed through its state machine and the guards."""
    planned = (
        _device_step(view, trigger, policy) if trigger.machine == "device" else recover.step(view, trigger, policy)
    )
    if planned is None:
        return decision, view
    moved, actions = planned
    if trigger in view.retried:
        actions = tuple(action for action in actions if not harmless(action))  # done when it was held back
    held = screen(view, actions, moved.trigger, policy)
    if held and all(_known(h, view) for h in held):
        return decision, view
    if held:
        spared = {h.action.id for h in held}
        passing = tuple(action for action in actions if action.id not in spared and harmless(action))
        change = replace(decision, moved=(), actions=passing, held=tuple(held), findings=(), incidents=(), diagnoses=())
    else:
        change = replace(decision, moved=(moved,), actions=actions, held=(), findings=(), incidents=(), diagnoses=())
    return _with(decision, change), view.after(change)


def _known(held: Held, view: View) -> bool:
    """The same was held back before, and it stands written."""
    return held.action.id in view.held


def _with(decision: Decision, change: Decision) -> Decision:
    return replace(
        decision,
        moved=(*decision.moved, *change.moved),
        actions=(*decision.actions, *change.actions),
        held=(*decision.held, *change.held),
    )


def _device_step(view: View, trigger: Trigger, policy: Policy) -> tuple[Moved, tuple[AnyAction, ...]] | None:
    device = view.device(trigger.who)
    transition = DEVICE.step(device.state, trigger.on)
    if transition is None:
        return None
    gpu = trigger.who if trigger.who in view.owners else ""
    same = {"cause": trigger.cause, "reason": trigger.why}
    actions: tuple[AnyAction, ...] = ()
    match transition.act:
        case "isolate-soft":
            name = f"{trigger.who}/isolate-soft/{device.since:.3f}"
            actions = (Isolate(id=name, node=device.node, gpu=gpu, mode="soft", **same),)
        case "isolate-hard":
            name = f"{trigger.who}/isolate-hard/{device.since:.3f}"
            text = f"{trigger.who} on {device.node} must be taken out: {trigger.why}"
            page = Page(id=f"{trigger.who}/page/{view.seq}", level="critical", text=text, **same)
            actions = (Isolate(id=name, node=device.node, gpu=gpu, mode="hard", **same), page)
        case "restrict":
            name = f"{trigger.who}/restrict/{device.since:.3f}"
            actions = (Restrict(id=name, node=device.node, gpu=gpu, **same),)
        case "repair":
            actions = _repair(view, trigger, policy, gpu)
        case "give-back":
            actions = (GiveBack(id=f"{trigger.who}/give-back/{view.seq}", node=device.node, gpu=gpu, **same),)
        case "page":
            text = f"{trigger.who} on {device.node}: {PAGES.get(trigger.on, 'the scheduler refused')}: {trigger.why}"
            actions = (Page(id=f"{trigger.who}/page/{view.seq}", level="critical", text=text, **same),)
    return Moved(trigger=trigger, source=device.state, target=transition.target), actions


def _repair(view: View, trigger: Trigger, policy: Policy, gpu: str) -> tuple[AnyAction, ...]:
    """What is to be done with it; looked at before it is back where any finding about it wants that."""
    found, device = _mends(view, trigger, policy), view.device(trigger.who)
    if found is None or not found.mends:
        return ()
    findings = view.incidents[trigger.cause].findings
    readmit = all(finding.readmit for finding in findings if finding.part.name == trigger.who)
    name = f"{trigger.who}/repair/{device.since:.3f}"
    same = {"cause": trigger.cause, "reason": trigger.why}
    return (Repair(id=name, node=device.node, gpu=gpu, how=found.mends, readmit=readmit, **same),)


def _touches_lineage(event: AnyEvent, decision: Decision) -> bool:
    """Whether this event can change what is thought of a checkpoint, or which one an attempt runs from."""
    if isinstance(event, StepReported):
        return not event.finite
    return isinstance(event, LINEAGE) or any(finding.doubt_from is not None for finding in decision.findings)


def _judge(decision: Decision, view: View, policy: Policy) -> tuple[Decision, View]:
    """Verdicts on checkpoints that this event changed."""
    for action in recover.judgements(view):
        trigger = Trigger(machine="job", who=action.job, on="judged", why=action.reason)
        held = tuple(screen(view, (action,), trigger, policy))
        if held and held[0].action.id in view.held:
            continue
        change = replace(
            decision, moved=(), actions=() if held else (action,), held=held, findings=(), incidents=(), diagnoses=()
        )
        decision, view = _with(decision, change), view.after(change)
    return decision, view


def _second_thoughts(view: View, policy: Policy) -> list[Trigger]:
    """A running attempt whose checkpoint has just become suspect, and one that could have more than it runs on."""
    doubtful = [
        Trigger(machine="job", who=name, on="suspect-resume", why=f"step {job.resumed}, which it loaded, is in doubt")
        for name, job in ordered(view.jobs)
        if job.state in {"proving", "running", "starting"} and recover.runs_from_suspect(job, view)
    ]
    grown = [
        Trigger(machine="job", who=name, on="room", why="more than it runs on is in service again")
        for name, job in ordered(view.jobs)
        if recover.may_grow(job, view, policy)
    ]
    return [*doubtful, *grown]


def _reason(decision: Decision) -> str:
    said = [f"{f.part.name}: {f.meaning}" for f in decision.findings]
    said += [
        f"{m.trigger.who}: {m.source} -> {m.target}" + (f" ({m.trigger.why})" if m.trigger.why else "")
        for m in decision.moved
    ]
    said += [f"held by {h.guard}: {h.why}" for h in decision.held]
    return "; ".join(dict.fromkeys(said))
