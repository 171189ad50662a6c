"""One step of the loop, without its I/O: live operation, replay and simulation all go through here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from medevac.core.decide import decide
from medevac.core.decision import Decision
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import DecisionRecord, EventRecord, Record


def advance(view: View, record: EventRecord, policy: Policy) -> tuple[View, Decision]:
    """The view with one more event and what was decided on it. An empty decision changes nothing and is not kept."""
    seen = view.apply(record.event, record.seq)
    decision = decide(seen, record.event, policy)
    return seen.after(decision), decision


def paired(records: Iterable[Record]) -> Iterator[tuple[EventRecord, Decision | None]]:
    """Each event in order of seq with the decision that was recorded on it.

    A decision stands wherever in the log it was written: others may have appended events meanwhile. What it answers
    says its `cause`.
    """
    events, decisions = [], {}
    for record in records:
        match record:
            case EventRecord():
                events.append(record)
            case DecisionRecord():
                decisions[record.decision.cause] = record.decision
    events.sort(key=lambda record: record.seq)
    for event in events:
        yield event, decisions.get(event.seq)


def refold(view: View, records: Iterable[Record]) -> Iterator[tuple[View, EventRecord, Decision | None]]:
    """The views that a log led to, each after its event and the decision recorded on it (None: none was).

    What was recorded counts, not what would be decided today. Events behind the last recorded decision may never
    have been decided on: a loop that takes over advances through those again (an empty decision stays empty).
    """
    for record, decision in paired(records):
        view = view.apply(record.event, record.seq)
        if decision is not None:
            view = view.after(decision)
        yield view, record, decision
