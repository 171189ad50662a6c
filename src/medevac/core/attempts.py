"""What a job's own events mean for its recovery: it started, moved on, went bad, hung, ended."""

from __future__ import annotations

from medevac.core import corruption
from medevac.core.actions import StartAttempt, VerifyCheckpoint
from medevac.core.decision import Trigger
from medevac.core.diagnose_case import Diagnosis
from medevac.core.events import (
    ActionSettled,
    AnyEvent,
    AttemptEnded,
    AttemptExamined,
    AttemptStarted,
    CheckpointVerified,
    JobSubmitted,
    OrderGiven,
    ResumedFrom,
    StepReported,
    TimePassed,
)
from medevac.core.failure import blamed, own_mistake
from medevac.core.hang import hung
from medevac.core.job_recovery import WAITS
from medevac.core.jobs import Job
from medevac.core.lineage import doubted_as
from medevac.core.policy import Policy
from medevac.core.recover import runs_from_suspect
from medevac.core.view import View, ordered

DRAINED, HARDWARE = 83, 84


def triggers(view: View, event: AnyEvent, policy: Policy, verdict: Diagnosis | None = None) -> list[Trigger]:
    """What this event may move, in order; the state machine decides whether it does."""
    match event:
        case TimePassed() | AttemptExamined():
            return [trigger for name, job in ordered(view.jobs) for trigger in _due(name, job, view)]
        case OrderGiven():
            return [_of(event.target, f"order-{event.what}", f"by order of {event.who}")]
        case ActionSettled():
            return _settled(view, event, policy)
    name = getattr(event, "job", "")
    job = view.jobs.get(name)
    if job is None or getattr(event, "attempt", job.attempt) != job.attempt:
        return []
    match event:
        case JobSubmitted():
            return [_of(name, "submitted")]
        case AttemptStarted() if job.ended is None:
            return [_of(name, "started")]
        case StepReported():
            return _stepped(job, event)
        case ResumedFrom() if runs_from_suspect(job, view):
            return [
                _of(name, "suspect-resume", f"rank {event.rank} loaded step {event.step}, which is not known clean")
            ]
        case AttemptEnded():
            told = _ended(job, event, view, policy, verdict)
            return [told, *_stops_array(job, view, told)]
        case CheckpointVerified() if event.step == job.chosen:
            good = event.ok or _unsealed_by_order(job)
            return [_of(name, "good-checkpoint" if good else "bad-checkpoint", event.problem)]
    return []


def _stepped(job: Job, event: StepReported) -> list[Trigger]:
    name, step = event.job, event.step
    if event.handled:
        return []
    if not event.finite:
        return [_of(name, "non-finite", f"rank {event.rank} reports a non-finite value at step {step}")]
    moved_on = step > job.best and (job.best >= 0 or step)
    return [_of(name, "progress", f"step {step} passed {job.best}")] if moved_on else []


def _unsealed_by_order(job: Job) -> bool:
    """A person named this checkpoint, and it has no seal to be compared with."""
    return job.chosen is not None and job.chosen == job.trusted and job.checkpoints[job.chosen].sealed_at is None


def _of(who: str, on: str, why: str = "", blames: tuple[str, ...] = ()) -> Trigger:
    return Trigger(machine="job", who=who, on=on, why=why, blames=blames)


def _due(name: str, job: Job, view: View) -> list[Trigger]:
    if silent := hung(name, job, view):
        return [silent]
    return [_of(name, "due", "its time is up")] if job.until is not None and view.now >= job.until else []


def _settled(view: View, event: ActionSettled, policy: Policy) -> list[Trigger]:
    action = view.settled
    if event.outcome in {"refused", "no-room", "unsupported"}:
        if isinstance(action, StartAttempt):
            return [_refused(view.jobs[action.job], event, policy)]
        if isinstance(action, VerifyCheckpoint):
            return [_of(action.job, "bad-checkpoint", event.why)]
    return []


def _refused(job: Job, event: ActionSettled, policy: Policy) -> Trigger:
    """Too little in service passes by itself, a no that is said again and again does not."""
    name = job.spec.job
    if event.outcome == "no-room":
        return _of(name, "no-place", event.why)
    times = job.denials + 1 if job.denied == "refused" else 1
    if times < policy.recovery.refused_starts:
        return _of(name, "refused", event.why)
    return _of(name, "refused-often", f"its start was refused {times} times in a row: {event.why}")


def _ended(job: Job, event: AttemptEnded, view: View, policy: Policy, verdict: Diagnosis | None) -> Trigger:
    name, recovery = job.spec.job, policy.recovery
    told = f"attempt {event.attempt} ended with {_code(event)}"
    if event.code == 0 and not _tainted(job, view):
        return _of(name, "completed", told)
    if policy.mode == "monitor" or not job.spec.policy.enabled:
        return _of(name, "only-watched", told)
    if job.corrupted and job.corrupted.outcome == "software":
        return _of(name, "user-code", f"{told}: {corruption.words(job.corrupted)}")
    if job.state in {"leaving", "stopping"} or event.code == DRAINED:
        told = job.why or told
    elif verdict and (alike := failing_alike(job, view, policy)):
        return _of(name, "array-failed", f"{alike}; last: {told}")
    elif not job.passed() and event.code in recovery.user_code_exits:
        return _of(name, "user-code", f"{told}: the command itself is wrong")
    elif verdict and own_mistake(job, verdict):
        return _of(name, "user-code", f"{told}: {verdict.cause}: {verdict.root[0].text.strip()}")
    most = job.spec.policy.max_restarts if job.spec.policy.max_restarts is not None else recovery.max_restarts
    if _same_bad_step_again(job, view):
        return _of(name, "user-code", f"a non-finite value at step {job.bad[-1][1]} again, without a hardware fault")
    if not job.passed() and not job.spared() and job.unproven + 1 >= recovery.attempts_without_progress:
        many = f"{job.unproven + 1} attempts in a row passed no earlier step"
        return _of(name, "no-progress", f"{many} (the best is {max(job.best, 0)}); last: {told}")
    if job.restarts >= most:
        return _of(name, "too-many", f"{job.restarts} restarts, the most allowed; last: {told}")
    named = blamed(job, verdict) * recovery.same_gpu_crashes if verdict and not event.why else ()
    return _of(name, "failed", told, corruption.left(job) * recovery.same_gpu_crashes or named or _blamed(job, event))


def failing_alike(job: Job, view: View, policy: Policy) -> str:
    """Of the tasks of its array that ran so far, enough failed as this one did; "" where not."""
    array, recovery = job.spec.array, policy.recovery
    if not array or not job.failed_as:
        return ""
    tasks = [one for one in view.jobs.values() if one.spec.array == array]
    alike = sum(one.failed_as == job.failed_as for one in tasks)
    if alike < recovery.array_least or alike <= recovery.array_share * len(tasks):
        return ""
    return f"{alike} of {len(tasks)} tasks of {array} that ran failed alike ({job.failed_as})"


def _stops_array(job: Job, view: View, told: Trigger) -> list[Trigger]:
    """What waits for its next attempt waits for a person instead; what runs goes on."""
    if told.on != "array-failed":
        return []
    return [
        _of(name, "array-failed", told.why)
        for name, one in ordered(view.jobs)
        if one.spec.array == job.spec.array and one.state in WAITS and one.failed_as == job.failed_as
    ]


def _tainted(job: Job, view: View) -> bool:
    """Its results cannot be trusted: NaN was seen, a GPU of it was in doubt while it ran, or it began from doubt."""
    if any(attempt == job.attempt for attempt, _ in job.bad) or runs_from_suspect(job, view):
        return True
    return any(d.until is None for name in _names(job) for d in view.doubts.get(name, ()))


def _names(job: Job) -> set[str]:
    """The names under which doubt about what the attempt runs on is kept."""
    return {name for place in job.ranks for gpu in place.gpus or ("",) for name in doubted_as(gpu, place.node) if name}


def _same_bad_step_again(job: Job, view: View) -> bool:
    steps = [step for _, step in job.bad]
    hardware = any(view.doubts.get(name) for name in _names(job))
    return job.on == "non-finite" and not hardware and len(steps) > 1 and steps[-1] in steps[:-1]


def _blamed(job: Job, event: AttemptEnded) -> tuple[str, ...]:
    """The GPUs of the rank that died first by itself, or of one that said its hardware is suspect."""
    if event.why:
        return ()
    suspects = [exit_ for exit_ in event.exits if exit_.code == HARDWARE] or list(event.exits[:1])
    times = 2 if suspects and suspects[0].code == HARDWARE else 1
    return job.own_gpus(suspects[0].rank) * times if suspects and suspects[0].code not in {0, DRAINED} else ()


def _code(event: AttemptEnded) -> str:
    first = event.exits[0] if event.exits else None
    if first and first.signal:
        return f"signal {first.signal} of rank {first.rank}"
    return f"exit code {event.code}"
