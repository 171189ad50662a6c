"""A log as a text to read: each decision with the event it answers, times in seconds from the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.scenario.world import START

from medevac.controller.step import paired
from medevac.core import events as ev
from medevac.core.actions import AnyAction, StartAttempt
from medevac.core.decision import Decision
from medevac.ports.store import Record


def told(records: Sequence[Record]) -> str:
    """The whole log: events that led to a decision, what was decided, and the ends of attempts."""
    return "\n".join(_lines(records)) + "\n"


def _lines(records: Iterable[Record]) -> Iterator[str]:
    for record, decision in paired(records):
        event = record.event
        if decision is None and not isinstance(event, ev.AttemptEnded | ev.OrderGiven | ev.EnvironmentSeen):
            continue
        yield f"{(event.seen_at or event.at) - START:8.2f}  {_event(event)}"
        if decision is not None:
            yield from (f"          {line}" for line in _decision(decision))


def _decision(decision: Decision) -> Iterator[str]:
    for finding in decision.findings:
        clauses = ", ".join(f"{c.says}: {c.value} (limit {c.limit})" for c in finding.clauses)
        doubt = "" if finding.doubt_from is None else f"; in doubt from {finding.doubt_from - START:.2f}"
        yield f"found     {finding.rule} on {finding.part.name}: {clauses}{doubt}"
    for incident in decision.incidents:
        cause = f", cause {incident.probable_cause.name} ({incident.why})" if incident.probable_cause else ""
        victims = ", ".join(part.name for part in incident.victims) or "none"
        yield f"incident  {incident.id} {incident.severity}: root {incident.root.name}, victims {victims}{cause}"
    for moved in decision.moved:
        why = f": {moved.trigger.why}" if moved.trigger.why else ""
        until = "" if moved.until is None else f" until {moved.until - START:.2f}"
        yield f"moved     {moved.trigger.who} {moved.source} -> {moved.target}{until} on {moved.trigger.on}{why}"
    for action in decision.actions:
        yield f"action    {_action(action)}"
    for held in decision.held:
        again = "" if held.until is None else f", again at {held.until - START:.2f}"
        yield f"held      {type(held.action).__name__} {held.action.id} by {held.guard}: {held.why}{again}"


def _action(action: AnyAction) -> str:
    extra = f" on {' '.join(_place(p) for p in action.ranks)}" if isinstance(action, StartAttempt) else ""
    state = getattr(action, "mode", "") or getattr(action, "state", "") or getattr(action, "purpose", "")
    code = f" code {action.code}" if hasattr(action, "code") else ""
    told_as = f" {state}" if state else ""
    return f"{type(action).__name__}{told_as}{code} {action.id}: {action.reason or getattr(action, 'text', '')}{extra}"


def _place(place: ev.RankPlace) -> str:
    return f"{place.rank}:{'+'.join(place.gpus) or place.node}"


def _event(event: ev.AnyEvent) -> str:
    kind, job = type(event).__name__, getattr(event, "attempt", None)
    attempt = "" if job is None else f" attempt {job}"
    match event:
        case ev.FaultSeen():
            return f"{kind} {event.kind} {event.code} on {event.node} {event.pci}"
        case ev.EccCounted():
            return f"{kind} {event.gpu} sbe={event.sbe} dbe={event.dbe} remapped_rows={event.remapped_rows}"
        case ev.EnvironmentSeen():
            return f"{kind} {event.component} {event.state} in {event.rack}"
        case ev.StepReported():
            return f"{kind}{attempt} rank {event.rank} step {event.step}" + ("" if event.finite else " NOT FINITE")
        case ev.AttemptEnded():
            first = f", first rank {event.exits[0].rank}" if event.exits else ""
            return f"{kind}{attempt} code {event.code} {event.why}".rstrip() + first
        case ev.ResumedFrom() | ev.CheckpointSealed() | ev.CheckpointFound():
            return f"{kind}{attempt} step {event.step}"
        case ev.CheckpointVerified():
            return f"{kind} step {event.step} {'ok' if event.ok else event.problem}"
        case ev.ActionSettled():
            return f"{kind} {event.action} {event.outcome}" + (f": {event.why}" if event.why else "")
        case ev.OrderGiven():
            step = "" if event.step is None else f" step {event.step}"
            return f"{kind} {event.what} {event.target}{step} by {event.who}"
        case _:
            return f"{kind}{attempt}"
