"""Who holds a stalled collective up, from the flight recorders of its ranks. Works on incomplete sets.

The order of reasoning, each step only where the one before found nobody:
a rank without a dump; in the group that stalled first, the ranks that enqueued least (and where such a rank waits in
another group, that group instead); ranks that enqueued but did not start; ranks whose operation or sizes differ;
else all ranks started, and the fabric or a device is the suspect, not a rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["scheduled", "started", "completed"]
Held: TypeAlias = Literal["none", "missing-dump", "behind", "not-started", "mismatch", "all-started"]

ANY_SIZE = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced", "barrier")
"""Operations whose sizes may rightly differ from rank to rank."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded operation of a group. `created` is unix nanoseconds, `place` the caller's file and line."""

    group: str
    seq: int
    op: str
    state: State
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    created: int = 0
    place: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's dump: the members of each group as it knows them, its operations, the last enqueued by group."""

    rank: int
    members: dict[str, tuple[int, ...]] = {}
    entries: tuple[Collective, ...] = ()
    enqueued: dict[str, int] = {}


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """The finding. `ranks` hold the others up (empty with `none` and `all-started`); `missing` gave no dump."""

    held: Held
    why: str
    ranks: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    group: str = ""
    seq: int = 0
    op: str = ""
    place: str = ""


def analyse(traces: Mapping[int, Trace]) -> Stall:
    """Find who holds the job up. Never raises: a set that says nothing gives `none`."""
    expected = {rank for trace in traces.values() for members in trace.members.values() for rank in members}
    missing = tuple(sorted(expected - set(traces)))
    groups = sorted({group for trace in traces.values() for group in _pending(trace)}, key=lambda g: _since(traces, g))
    if not groups:
        return Stall(held="none", why="no collective is pending in any dump", missing=missing)
    if missing and len(missing) * 4 <= len(expected):
        first = _pending_in(traces, groups[0])
        return Stall(
            held="missing-dump",
            why="gave no dump while the others wait: it is gone, or stuck so that it could not write one",
            ranks=missing,
            missing=missing,
            group=groups[0],
            seq=first.seq,
            op=first.op,
            place=first.place,
        )
    return _in_group(traces, groups[0], frozenset(), missing)


def _in_group(traces: Mapping[int, Trace], group: str, seen: frozenset[str], missing: tuple[int, ...]) -> Stall:
    """The finding in one group; goes on to the group in which its culprits themselves wait."""
    members = _members(traces, group)
    reached = {rank: _enqueued(traces[rank], group) for rank in members}
    pending = _pending_in(traces, group)
    behind = tuple(rank for rank in members if reached[rank] < pending.seq)
    late = behind or _not_started(traces, members, group, pending.seq)
    for rank in late:
        for other in sorted(set(_pending(traces[rank])) - seen - {group}, key=lambda g: _since(traces, g)):
            return _in_group(traces, other, seen | {group}, missing)
    held: Held = "behind" if behind else "not-started" if late else "all-started"
    why = {
        "behind": f"did not come to {pending.op} number {pending.seq}, in which the others wait",
        "not-started": f"enqueued {pending.op} number {pending.seq} but its device did not start it",
        "all-started": "all ranks started it and none completed: look at the fabric and the devices",
    }[held]
    odd = () if behind else _odd_ones(traces, members, group, pending.seq)
    if odd:
        held, late, why = "mismatch", odd, f"called another operation or other sizes than the others ({pending.op})"
    return Stall(
        held=held,
        why=why,
        ranks=late,
        missing=missing,
        group=group,
        seq=pending.seq,
        op=pending.op,
        place=pending.place,
    )


def _pending(trace: Trace) -> dict[str, Collective]:
    """The first operation that did not complete, by group."""
    found: dict[str, Collective] = {}
    for one in trace.entries:
        if one.state != "completed" and (one.group not in found or one.seq < found[one.group].seq):
            found[one.group] = one
    return found


def _pending_in(traces: Mapping[int, Trace], group: str) -> Collective:
    """The earliest operation of the group that some rank waits in."""
    waiting = (pending[group] for trace in traces.values() if group in (pending := _pending(trace)))
    return min(waiting, key=lambda one: (one.seq, one.created))


def _since(traces: Mapping[int, Trace], group: str) -> tuple[int, str]:
    return _pending_in(traces, group).created, group


def _members(traces: Mapping[int, Trace], group: str) -> tuple[int, ...]:
    """The members of a group that gave a dump."""
    named = {rank for trace in traces.values() for rank in trace.members.get(group, ())}
    seen = {rank for rank, trace in traces.items() if any(one.group == group for one in trace.entries)}
    return tuple(sorted((named or seen) & set(traces)))


def _enqueued(trace: Trace, group: str) -> int:
    recorded = max((one.seq for one in trace.entries if one.group == group), default=0)
    return max(recorded, trace.enqueued.get(group, 0))


def _at(trace: Trace, group: str, seq: int) -> Collective | None:
    return next((one for one in trace.entries if one.group == group and one.seq == seq), None)


def _not_started(traces: Mapping[int, Trace], members: Iterable[int], group: str, seq: int) -> tuple[int, ...]:
    """Ranks that enqueued it and did not start it, where others did."""
    states = {rank: one.state for rank in members if (one := _at(traces[rank], group, seq)) is not None}
    waiting = tuple(rank for rank, state in states.items() if state == "scheduled")
    return waiting if 0 < len(waiting) < len(states) else ()


def _odd_ones(traces: Mapping[int, Trace], members: Iterable[int], group: str, seq: int) -> tuple[int, ...]:
    """Ranks whose operation, sizes or types differ from what most ranks called."""
    shapes = {rank: _shape(one) for rank in members if (one := _at(traces[rank], group, seq)) is not None}
    usual, _ = Counter(shapes.values()).most_common(1)[0] if shapes else ((), 0)
    return tuple(rank for rank, shape in shapes.items() if shape != usual)


def _shape(one: Collective) -> tuple[object, ...]:
    if any(word in one.op for word in ANY_SIZE):
        return (one.op,)
    return (one.op, one.sizes, one.dtypes)
