"""What a job needs: the triggers an event gives its state machine, and the actions behind each transition's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from medevac.core.actions import (
    AnyAction,
    FinishJob,
    HoldJob,
    JudgeCheckpoint,
    Page,
    PointClean,
    ReleaseJob,
    RequestCheckpoint,
    StartAttempt,
    StopAttempt,
    VerifyCheckpoint,
)
from medevac.core.decision import Finding, Moved, Trigger
from medevac.core.events import RankPlace
from medevac.core.job_recovery import JOB
from medevac.core.jobs import Job
from medevac.core.lineage import newest_clean, verdicts
from medevac.core.node_lifecycle import IN_SERVICE
from medevac.core.placement import place
from medevac.core.policy import Policy
from medevac.core.view import View, ordered

GAVE_UP = 4
HANDS_ON = {"no-progress", "too-many"}
DENIALS = {"no-place", "refused"}


def step(view: View, trigger: Trigger, policy: Policy) -> tuple[Moved, tuple[AnyAction, ...]] | None:
    """The transition of a job on a trigger and what it takes; None where the trigger means nothing in its state."""
    job = view.jobs.get(trigger.who)
    if job is None:
        return None
    trigger = _resolved(job, view, trigger, policy)
    transition = JOB.step(job.state, trigger.on)
    if transition is None:
        return None
    moved = Moved(
        trigger=trigger,
        source=job.state,
        target=transition.target,
        until=_until(job, transition.target, trigger, view, policy),
    )
    return moved, tuple(ACTS[transition.act](job, view, trigger, policy))


def out_for(job: Job, view: View, policy: Policy) -> frozenset[str]:
    """GPUs and nodes that the job must not be placed on: out of service, blamed in an open incident, or twice the
    first to crash in this job.
    """
    out = {name for name, device in view.devices.items() if device.state not in IN_SERVICE}
    blamed = {
        finding.part.name
        for incident in view.incidents.values()
        if not incident.closed
        for finding in incident.findings
        if finding.response in {"soft", "hard"}
    }
    crashed = {gpu for gpu, times in Counter(job.culprits).items() if times >= policy.recovery.same_gpu_crashes}
    return frozenset(out | blamed | crashed)


def places(job: Job, view: View, policy: Policy) -> tuple[RankPlace, ...] | None:
    """Where its next attempt goes; None while nothing is usable."""
    nodes = tuple(view.nodes.values())
    spec, least = job.spec, job.spec.policy.min_ranks or 1
    return place(nodes, spec.ranks, spec.gpus_per_rank, out_for(job, view, policy), job.ran or job.ranks, least)


def may_grow(job: Job, view: View, policy: Policy) -> bool:
    """It runs on less than it could have now, and a restart would lose nothing: its checkpoints are followed."""
    if job.state != "running" or not job.spec.ranks or job.spec.source != "local" or not _followed(job):
        return False
    found = places(job, view, policy) or ()
    return sum(_size(place) for place in found) > sum(_size(place) for place in job.ranks)


def _size(place: RankPlace) -> int:
    return max(len(place.gpus), 1)


def judgements(view: View) -> Iterable[JudgeCheckpoint]:
    """Verdicts that differ from what the lineage files say (a clean one is written only over another)."""
    for name, job in ordered(view.jobs):
        for number, verdict in verdicts(job, view.doubts).items():
            known = job.checkpoints[number]
            if verdict.state == (known.written or "clean"):
                continue
            yield JudgeCheckpoint(
                id=f"{name}/judge/{number}/{verdict.state}/{known.written_at:.3f}",
                job=name,
                step=number,
                state=verdict.state,
                reason=verdict.why or "sealed anew",
            )


def runs_from_suspect(job: Job, view: View) -> bool:
    """The present attempt loaded a checkpoint that is not known clean."""
    if job.resumed is None or job.resumed == job.trusted or job.spec.policy.lineage == "none":
        return False
    verdict = verdicts(job, view.doubts).get(job.resumed)
    return verdict is not None and verdict.state != "clean"


def hit(job: Job, findings: Iterable[Finding]) -> Finding | None:
    """The worst of these findings about something that the running attempt uses."""
    mine = [f for f in findings if f.part.name in job.gpus() or f.part.name in job.nodes()]
    acting = [f for f in mine if f.response in {"soft", "hard"}]
    return min(acting, key=lambda f: f.response != "hard", default=None)


def _resolved(job: Job, view: View, trigger: Trigger, policy: Policy) -> Trigger:
    """Going on may turn out otherwise: nothing saved, nothing clean, nowhere to run."""
    on = trigger.on
    if (job.state, on) in {("backing-off", "due"), ("choosing", "bad-checkpoint")}:
        on = _next(job, view, policy) or on
    if on == "good-checkpoint" and newest_clean(job, view.doubts) != job.chosen:
        on = _next(job, view, policy) or "bad-checkpoint"
    goes_on = on in {"nothing-saved", "good-checkpoint"} or (job.state, on) == ("backing-off", "due")
    if goes_on and places(job, view, policy) is None:
        on = "no-place"  # before files are read for nothing, as well
    why = trigger.why if on == trigger.on else ""
    return Trigger(
        machine="job", who=trigger.who, on=on, why=why, cause=trigger.cause or job.cause, blames=trigger.blames
    )


def _next(job: Job, view: View, policy: Policy) -> str:
    """Empty where a clean checkpoint can be verified, else why none can."""
    if not _followed(job):
        return "nothing-saved"
    if newest_clean(job, view.doubts) is not None:
        return ""
    restart = (job.spec.policy.no_clean or policy.recovery.no_clean) == "restart"
    return "nothing-saved" if restart else "no-clean"


def _followed(job: Job) -> bool:
    """It has checkpoints, and their lineage counts."""
    own = job.spec.policy
    return own.checkpoint_dir is not None and own.lineage != "none" and bool(job.checkpoints)


def _pointed(job: Job, policy: Policy, step: int | None, when: str, reason: str) -> list[AnyAction]:
    """The pointer as it has to be before anything can start (DESIGN, 6): whoever runs the job next finds it."""
    if policy.mode == "monitor" or not _followed(job):
        return []
    name, to = job.spec.job, "none" if step is None else step
    return [PointClean(id=f"{name}/point/{to}/{when}", job=name, step=step, reason=reason)]


def _until(job: Job, target: str, trigger: Trigger, view: View, policy: Policy) -> float | None:
    recovery = policy.recovery
    if target == "leaving":
        return view.now + (job.spec.policy.drain_deadline_s or recovery.drain_deadline_s)
    if target != "backing-off":
        return None
    if trigger.on in {"submitted", "order-release"}:
        return view.now
    if trigger.on in DENIALS:
        before = job.denials if job.denied == trigger.on else 0
        return view.now + min(recovery.retry_s * 2.0 ** min(before, 16), recovery.retry_most_s)
    return view.now + recovery.backoff_s[min(job.unproven, len(recovery.backoff_s) - 1)]


def _nothing(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    return []


def _start(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:
    name, attempt = job.spec.job, job.attempt + 1
    when = f"{attempt}/{job.since:.3f}" if job.denied else f"{attempt}"
    resume = job.chosen if trigger.on == "good-checkpoint" else None
    start = StartAttempt(
        id=f"{name}/start/{when}",
        cause=trigger.cause,
        reason="from nothing" if resume is None else f"from step {resume}, the newest checkpoint known clean",
        job=name,
        attempt=attempt,
        ranks=places(job, view, policy) or (),
        resume_from=resume,
    )
    return [*_pointed(job, policy, resume, when, "what the next attempt loads"), start]


def _verify(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    chosen = newest_clean(job, view.doubts)
    if chosen is None:
        return []
    reason = "before it is loaded, its files are compared with its seal"
    return [
        VerifyCheckpoint(
            id=f"{job.spec.job}/verify/{chosen}/{job.since:.3f}", job=job.spec.job, step=chosen, reason=reason
        )
    ]


def _stop(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:
    name, when = job.spec.job, f"{job.attempt}/{job.since:.3f}"
    clean = newest_clean(job, view.doubts) if _followed(job) else None
    known = clean is not None and clean == job.pointed
    stop = StopAttempt(
        id=f"{name}/stop/{when}",
        cause=trigger.cause,
        reason=trigger.why,
        job=name,
        attempt=job.attempt,
        grace_s=0.0 if trigger.on in {"hung", "critical", "non-finite"} else policy.recovery.stop_grace_s,
        examine=trigger.on == "hung" and not job.examined,
        hold="person" if _next(job, view, policy) == "no-clean" else "recovery",
        resume_from=clean,
    )
    return [*([] if known else _pointed(job, policy, clean, when, "what a start by anyone else would load")), stop]


def _ask(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    deadline = job.spec.policy.drain_deadline_s or policy.recovery.drain_deadline_s
    return [
        RequestCheckpoint(
            id=f"{job.spec.job}/ask/{job.attempt}",
            cause=trigger.cause,
            reason=trigger.why,
            job=job.spec.job,
            attempt=job.attempt,
            deadline_s=deadline,
        )
    ]


def _page(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    if job.denied == trigger.on:
        return []
    text = f"job {job.spec.job}: {trigger.why or 'no healthy GPU is left to run it on'}"
    return [Page(id=f"{job.spec.job}/page/{view.seq}", level="warning", text=text)]


def _finish(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    finish = FinishJob(id=f"{job.spec.job}/finish/{job.attempt}", job=job.spec.job, code=0, reason="it ended well")
    newest = newest_clean(job, view.doubts)
    if newest is None or newest == job.pointed or view.paused or policy.mode == "monitor":
        return [finish]
    reason = "the newest clean one when it ended"
    return [PointClean(id=f"{job.spec.job}/point/{newest}/end", job=job.spec.job, step=newest, reason=reason), finish]


def _pass_on(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    code = job.ended.code if job.ended else 1
    return [FinishJob(id=f"{job.spec.job}/finish/{job.attempt}", job=job.spec.job, code=code, reason=trigger.why)]


def _give_up(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    name = job.spec.job
    own = job.ended.code if job.ended and not job.ended.why else 0
    code = own if own and trigger.on not in HANDS_ON else GAVE_UP
    text = f"job {name}: given up after attempt {job.attempt}: {trigger.why}"
    finish = FinishJob(id=f"{name}/finish/{job.attempt}", job=name, code=code, reason=trigger.why)
    return [Page(id=f"{name}/page/{view.seq}", level="critical", text=text), finish]


def _hold(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:
    name, when = job.spec.job, f"{job.since:.3f}"
    unclean = trigger.on == "no-clean"
    why = "no checkpoint is known clean" if unclean else trigger.why
    text = f"job {name}: {why}; `medevac release {name}{' --resume-from STEP' if unclean else ''}` lets it go on"
    hold = HoldJob(id=f"{name}/hold/{when}", job=name, purpose="person", reason=why)
    page = Page(id=f"{name}/page/{view.seq}", level="critical", text=text)
    return [*(_pointed(job, policy, None, f"hold/{when}", why) if unclean else ()), hold, page]


def _hold_array(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    """Paged once for the array, and again for a task that a person has let go on meanwhile."""
    name, array = job.spec.job, job.spec.array
    hold = HoldJob(id=f"{name}/hold/{job.since:.3f}", job=name, purpose="person", reason=trigger.why)
    stopped = any(one.on == "array-failed" for one in view.jobs.values() if one.spec.array == array)
    released = job.attempt > job.restarts + 1
    if stopped and not released:
        return [hold]
    text = f"array {array} is stopped: {trigger.why}; `medevac release {name}` lets a task go on"
    waiting = HoldJob(id=f"{array}/hold/{view.seq}", job=array, purpose="person", reason=trigger.why, array=True)
    return [hold, waiting, Page(id=f"{array}/page/{view.seq}", level="critical", text=text)]


def _release(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:  # noqa: ARG001
    return [ReleaseJob(id=f"{job.spec.job}/release/{view.seq}", job=job.spec.job, reason=trigger.why)]


def _end(job: Job, view: View, trigger: Trigger, policy: Policy) -> list[AnyAction]:
    finish = FinishJob(id=f"{job.spec.job}/finish/{view.seq}", job=job.spec.job, code=130, reason=trigger.why)
    return [*(_stop(job, view, trigger, policy) if job.attempt else []), finish]


ACTS: dict[str, Callable[[Job, View, Trigger, Policy], list[AnyAction]]] = {
    "": _nothing,
    "recovered": _nothing,
    "start": _start,
    "verify": _verify,
    "stop": _stop,
    "ask": _ask,
    "page": _page,
    "finish": _finish,
    "pass-on": _pass_on,
    "give-up": _give_up,
    "hold": _hold,
    "hold-array": _hold_array,
    "release": _release,
    "end": _end,
}
