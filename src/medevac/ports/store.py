"""The event log and the audit log: one sequence of records, durable before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from medevac.core.decision import Decision
from medevac.core.events import AnyEvent


class EventRecord(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """An event at its place in the log."""

    seq: int
    event: AnyEvent


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, tag="decision"):
    """A decision at its place in the log; its `cause` is the seq of the event it answers."""

    seq: int
    decision: Decision


Record: TypeAlias = EventRecord | DecisionRecord


class Store(Protocol):
    """Append-only. All calls are durable when they return. Several processes may append at once."""

    async def append_events(
        self, events: Sequence[AnyEvent], *, cursor: tuple[str, str] | None = None
    ) -> tuple[EventRecord, ...]:
        """Take events in order, dropping those whose non-empty id was taken before; `cursor` (source name, value)
        is saved in the same transaction. Returns the new ones. Raises `Unavailable` (full disk, locked: nothing was
        taken) and `BadReply` (the file is no store of ours).
        """
        ...

    async def append_decision(self, decision: Decision) -> DecisionRecord:
        """Write a decision down, once per decision id. Raises as `append_events`."""
        ...

    async def records(self, *, after: int = 0, limit: int = 1000) -> tuple[Record, ...]:
        """Records with seq over `after`, in order, at most `limit`."""
        ...

    async def wait(self, after: int, timeout_s: float) -> None:
        """Returns when a record with seq over `after` is there, or the time is up."""
        ...

    async def cursor(self, source: str) -> str:
        """The last cursor saved for a source, "" for none."""
        ...

    async def close(self) -> None: ...
