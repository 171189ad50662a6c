"""The story of a job out of its log: what happened, who is to blame, what was done, what it cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from medevac.core.decision import Finding, Incident
from medevac.core.events import JobSubmitted, RankPlace
from medevac.core.jobs import Job
from medevac.core.lineage import verdicts
from medevac.core.node_lifecycle import OUT
from medevac.ports.store import EventRecord, Record
from medevac.report.gather import AttemptNotes, Notes, thinned
from medevac.report.headline import headline, summary
from medevac.report.html import render_html
from medevac.report.model import (
    Attempt,
    CheckpointTold,
    DeviceTold,
    FindingTold,
    IncidentTold,
    Outcome,
    Point,
    Recovery,
    Story,
    Summary,
)
from medevac.report.text import render_text
from medevac.report.words import clause, count

__all__ = ["Story", "build", "render_html", "render_text", "to_json"]

OUTCOMES: dict[str, Outcome] = {"gave-up": "gave-up", "held": "held", "watched": "watched", "ended": "stopped"}


def build(records: Sequence[Record], job: str = "") -> Story:
    """The story of that job, or of the one that came last. Raises ValueError where the log has none (such)."""
    names = [r.event.job for r in records if isinstance(r, EventRecord) and isinstance(r.event, JobSubmitted)]
    if not names or (job and job not in names):
        known = f"; it has {', '.join(dict.fromkeys(names))}" if names else ""
        raise ValueError(f"the log has no job{f' {job!r}' if job else ''}{known}")
    notes = Notes(job or names[-1])
    notes.read(list(records))
    spec = notes.view.jobs[notes.job]
    attempts = tuple(_attempt(notes, one) for _, one in sorted(notes.attempts.items()))
    bare = Story(
        job=notes.job,
        command=spec.spec.command,
        policy=notes.policy,
        outcome=_outcome(spec, notes),
        code=_code(spec),
        why=notes.why,
        headline="",
        summary=Summary(happened="", blame="", done="", cost=""),
        start=notes.start,
        end=notes.end,
        lost_steps=sum(recovery.lost_steps for recovery in notes.recoveries),
        down_s=round(sum(_down(recovery, notes.end) for recovery in notes.recoveries), 3),
        attempts=attempts,
        recoveries=tuple(notes.recoveries),
        incidents=tuple(_incidents(notes, attempts)),
        timeline=tuple(sorted(notes.moments, key=lambda moment: moment.at)),
        checkpoints=tuple(_checkpoints(notes, spec)),
        held=tuple(notes.held.values()),
        devices=tuple(_devices(notes, attempts)),
        in_place=tuple(notes.in_place.values()),
    )
    return msgspec.structs.replace(bare, headline=headline(bare), summary=summary(bare))


def to_json(story: Story) -> dict[str, Any]:
    """Plain values, as docs/story.md lists them; each recovery also with its `spans` by name, seconds."""
    told: dict[str, Any] = msgspec.to_builtins(story)
    for plain, recovery in zip(told["recoveries"], story.recoveries, strict=True):
        plain["spans"] = dict(recovery.spans())
    return told


def _outcome(job: Job, notes: Notes) -> Outcome:
    if job.state == "finished":
        if not notes.recoveries:
            return "undisturbed"
        return "recovered" if all(r.proof_at is not None for r in notes.recoveries) else "unproven"
    return OUTCOMES.get(job.state, "running")


def _code(job: Job) -> int | None:
    return job.ended.code if job.ended and job.state in {"finished", "gave-up", "watched", "ended"} else None


def _down(recovery: Recovery, end: float) -> float:
    return max((recovery.proof_at or end) - recovery.fault_at, 0.0)


def _attempt(notes: Notes, one: AttemptNotes) -> Attempt:
    ranks: tuple[RankPlace, ...] = one.started.ranks if one.started else ()
    return Attempt(
        number=one.number,
        started=one.started.at if one.started else None,
        ended=one.ended.at if one.ended else None,
        told=one.started.resume_from if one.started else None,
        loaded=one.loaded,
        ranks=ranks,
        nodes=tuple(dict.fromkeys(place.node for place in ranks)),
        how=_how(one),
        why=notes.names.plain(one.why),
        diagnosis=one.diagnosis,
        reached=one.reached(),
        proved_at=one.proved_at,
        bad=one.bad,
        curve=_curve(one),
    )


def _how(one: AttemptNotes) -> str:
    if one.ended is None:
        return "still running"
    if one.ended.why:
        return f"{one.ended.why} by Medevac" if one.ended.why == "stopped" else one.ended.why
    if one.ended.code == 0:
        return "ended well"
    if one.ended.code == 83:
        return "saved and left when asked"
    first = one.ended.exits[0] if one.ended.exits else None
    if first is None:
        return f"exit code {one.ended.code}"
    how = f"signal {first.signal}" if first.signal else f"exit code {first.code}"
    return f"rank {first.rank} died first: {how}"


def _curve(one: AttemptNotes) -> tuple[Point, ...]:
    return thinned(one.curve)


def _incidents(notes: Notes, attempts: Sequence[Attempt]) -> list[IncidentTold]:
    used = {gpu for attempt in attempts for place in attempt.ranks for gpu in place.gpus}
    nodes = {node for attempt in attempts for node in attempt.nodes}
    told = [
        _incident(notes, incident, used, nodes)
        for incident in notes.view.incidents.values()
        if incident.root.domain != "job" or incident.root.name == notes.job
    ]
    return sorted(told, key=lambda incident: (not incident.touched, incident.start, incident.id))


def _incident(notes: Notes, incident: Incident, used: set[str], nodes: set[str]) -> IncidentTold:
    names = notes.names
    parts = (incident.root, *incident.victims)
    ran_on = any(part.name in used if part.domain == "gpu" else part.name in {*nodes, notes.job} for part in parts)
    return IncidentTold(
        id=incident.id,
        start=incident.start,
        last=incident.last,
        severity=incident.severity,
        root=names.part(incident.root),
        victims=tuple(names.part(part) for part in incident.victims),
        probable_cause=names.part(incident.probable_cause) if incident.probable_cause else "",
        why=names.plain(incident.why),
        closed=incident.closed,
        touched=ran_on,
        findings=tuple(_finding(notes, finding) for finding in sorted(incident.findings, key=lambda f: f.at)),
    )


def _finding(notes: Notes, finding: Finding) -> FindingTold:
    return FindingTold(
        rule=finding.rule,
        part=finding.part.name,
        label=notes.names.part(finding.part),
        severity=finding.severity,
        response=finding.response,
        meaning=finding.meaning,
        repair=finding.repair,
        at=finding.at,
        clauses=tuple(clause(one) for one in finding.clauses),
    )


def _checkpoints(notes: Notes, job: Job) -> list[CheckpointTold]:
    judged = verdicts(job, notes.view.doubts)
    told = [notes.checkpoint(job.checkpoints[step], verdict) for step, verdict in judged.items()]
    return sorted([*notes.replaced, *told], key=lambda one: (one.step, one.attempt))


def _devices(notes: Notes, attempts: Sequence[Attempt]) -> list[DeviceTold]:
    first = _homes(attempts[0]) if attempts else {}
    last = _homes(attempts[-1]) if attempts else {}
    told = []
    for node in notes.view.nodes.values():
        for gpu in node.gpus:
            device, host = notes.view.device(gpu.uuid), notes.view.device(node.name)
            by = host if host.state in OUT and device.state not in OUT else device
            told.append(
                DeviceTold(
                    uuid=gpu.uuid,
                    index=gpu.index,
                    node=node.name,
                    rack=node.rack,
                    state=by.state,
                    why=_because(notes, gpu.uuid, by.state),
                    first_rank=first.get(gpu.uuid),
                    last_rank=last.get(gpu.uuid),
                )
            )
    return told


def _because(notes: Notes, uuid: str, state: str) -> str:
    findings = [f for i in notes.view.incidents.values() for f in i.findings if f.part.name == uuid]
    acting = [f for f in findings if f.response in {"soft", "hard"}]
    worst = min(acting, key=lambda f: (f.response != "hard", f.at), default=None)
    if worst and state in OUT:
        return worst.meaning
    return f"watched: {count(len(findings), 'finding')}" if findings else ""


def _homes(attempt: Attempt) -> dict[str, int]:
    return {gpu: place.rank for place in attempt.ranks for gpu in place.gpus}
