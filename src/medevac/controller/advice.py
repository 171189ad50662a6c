"""What a log of monitor mode recommended, in the words of `core.compare`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from medevac.controller.step import paired
from medevac.core.actions import Isolate, RequestCheckpoint, StopAttempt
from medevac.core.attempts import triggers
from medevac.core.compare import Advice
from medevac.core.decision import Decision
from medevac.core.events import AttemptEnded
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import EventRecord, Record

MONITOR = "monitor-only"
BY_OTHERS = {"requeued", "stopped"}
"""Ends that a person made: what follows is their doing already."""

GIVES_UP = {"no-progress", "too-many", "user-code", "array-failed"}


def advised(records: Iterable[Record], policy: Policy) -> tuple[View, list[Advice]]:
    """The view at the end, and in order of time what was held back by monitor mode alone, and what `policy` in act mode
    does at each end of a job that was only watched.
    """
    view, found = View.under(policy), []
    for record, decision in paired(records):
        view = view.apply(record.event, record.seq)
        if decision is not None:
            found += [*_held(decision), *_at_end(view, record, decision, policy)]
            view = view.after(decision)
    return view, found


def _held(decision: Decision) -> Iterator[Advice]:
    for held in decision.held:
        if held.guard != MONITOR:
            continue
        match held.action:
            case Isolate():
                yield Advice(
                    what="drain", subject=held.action.node, at=decision.at, why=held.action.reason, ref=decision.id
                )
            case StopAttempt() | RequestCheckpoint():
                yield Advice(
                    what="requeue", subject=held.action.job, at=decision.at, why=held.action.reason, ref=decision.id
                )


def _at_end(view: View, record: EventRecord, decision: Decision, policy: Policy) -> Iterator[Advice]:
    event = record.event
    watched = any(moved.trigger.on == "only-watched" for moved in decision.moved)
    if not isinstance(event, AttemptEnded) or event.why in BY_OTHERS or not watched:
        return
    known = view.after(replace(decision, moved=(), actions=(), held=()))
    verdict = decision.diagnoses[0].verdict if decision.diagnoses else None
    for trigger in triggers(known, event, replace(policy, mode="act"), verdict)[:1]:
        if trigger.on == "failed":
            yield Advice(what="requeue", subject=event.job, at=decision.at, why=trigger.why, ref=decision.id)
        elif trigger.on in GIVES_UP:
            yield Advice(what="leave", subject=event.job, at=decision.at, why=trigger.why, ref=decision.id)
