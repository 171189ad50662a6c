"""A silent attempt: named at its limit, looked at, and stopped when something confirms that it hangs (ADR 0021).

A stall of a healthy job looks like a hang until it ends: one rank waits for data, the others for that rank. What tells
them apart is evidence that no stall leaves (`HangRule.confirmed_by`), or time.
"""

from __future__ import annotations

from collections.abc import Iterator

from medevac.core.actions import ExamineAttempt
from medevac.core.decision import Clause, Finding, Part, Trigger
from medevac.core.diagnose_case import Clue
from medevac.core.jobs import Job
from medevac.core.view import View, ordered

NAMED = "hang"


def named(view: View) -> tuple[Finding, ...]:
    """The attempts whose limit has just passed: warnings that move nothing by themselves."""
    return tuple(_finding(name, job, view) for name, job in _silent(view) if _new(job))


def _new(job: Job) -> bool:
    """This silence was not told yet, and is not one of a job that stood suspended when it was looked at last."""
    return job.looks.since != job.pace.since and not job.suspended


def _finding(name: str, job: Job, view: View) -> Finding:
    then = f"stopped when confirmed, else in {job.pace.rule.patience_s:g} s"
    return Finding(
        rule=NAMED,
        part=Part(domain="job", name=name),
        severity="warning",
        meaning=f"no progress: {silence(job, view)}; {then}",
        at=view.now,
        clauses=(Clause(says=f"seconds in phase {job.pace.phase}", value=_lasts(job, view), limit=_limit(job)),),
    )


def looks(view: View) -> Iterator[ExamineAttempt]:
    """What must be looked at now: again and again while the silence lasts, and less and less often."""
    for name, job in _silent(view):
        since, rule = job.pace.since, job.pace.rule
        again = job.looks.since == since
        if again and view.now < job.looks.next_at:
            continue
        yield ExamineAttempt(
            id=f"{name}/look/{job.attempt}/{since:.3f}/{job.looks.times if again else 0}",
            reason=silence(job, view),
            job=name,
            attempt=job.attempt,
            since=since,
            silent_s=rule.silent_s,
            stacks=rule.stacks,
        )


def hung(name: str, job: Job, view: View) -> Trigger | None:
    """The trigger of an attempt that is to be stopped: past its limit and confirmed, or past all patience."""
    limit = view.hang_deadline(job)
    if limit is None or view.now < limit:
        return None
    found = confirming(job)
    if found is None and view.now < limit + job.pace.rule.patience_s:
        return None
    if found:
        return _hung(name, f"{silence(job, view)}; {found.text}", job.own_gpus(found.rank))
    late = job.behind()
    return _hung(name, silence(job, view), late[0].gpus if len(late) == 1 else ())


def confirming(job: Job) -> Clue | None:
    """What was seen in this silence that no stall of a healthy job leaves."""
    return next((clue for clue in job.examined if clue.signature in job.pace.rule.confirmed_by), None)


def silence(job: Job, view: View) -> str:
    """How long, in which phase, against which limit, and who is behind."""
    late = job.behind()
    who = f"; behind the others: rank {', '.join(str(place.rank) for place in late)}" if late else ""
    return f"{_lasts(job, view):.1f} s in phase {job.pace.phase}, the limit is {_limit(job):.1f} s{who}"


def _silent(view: View) -> Iterator[tuple[str, Job]]:
    for name, job in ordered(view.jobs):
        due = view.hang_deadline(job)
        if due is not None and view.now >= due:
            yield name, job


def _lasts(job: Job, view: View) -> float:
    return view.now - job.pace.since


def _limit(job: Job) -> float:
    return (job.pace.deadline() or job.pace.since) - job.pace.since


def _hung(name: str, why: str, blames: tuple[str, ...]) -> Trigger:
    return Trigger(machine="job", who=name, on="hung", why=why, blames=blames)
