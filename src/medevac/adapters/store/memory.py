"""The store in memory: the same contract for simulations and tests. It lasts as long as the object."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from medevac.adapters.store.codec import decode, encode
from medevac.core.decision import Decision
from medevac.core.events import AnyEvent
from medevac.ports.store import DecisionRecord, EventRecord, Record


class MemoryStore:
    """One process, one event loop; `wait` follows the loop's own time, virtual or real."""

    def __init__(self, identity: str = "memory") -> None:
        self.identity = identity
        self._records: list[Record] = []
        self._event_ids: set[str] = set()
        self._decisions: dict[str, DecisionRecord] = {}
        self._cursors: dict[str, str] = {}
        self._grown = asyncio.Condition()

    async def append_events(
        self, events: Sequence[AnyEvent], *, cursor: tuple[str, str] | None = None
    ) -> tuple[EventRecord, ...]:
        bodies = [(event.id, encode(event)) for event in events]
        taken = tuple(record for id_, body in bodies if (record := self._take(id_, body)))
        if cursor:
            self._cursors[cursor[0]] = cursor[1]
        await self._announce()
        return taken

    def _take(self, id_: str, body: str) -> EventRecord | None:
        if id_ in self._event_ids:
            return None
        if id_:
            self._event_ids.add(id_)
        record = cast("EventRecord", decode(len(self._records) + 1, "event", body))
        self._records.append(record)
        return record

    async def append_decision(self, decision: Decision) -> DecisionRecord:
        body = encode(decision)
        if decision.id not in self._decisions:
            record = cast("DecisionRecord", decode(len(self._records) + 1, "decision", body))
            self._decisions[decision.id] = record
            self._records.append(record)
            await self._announce()
        return self._decisions[decision.id]

    async def records(self, *, after: int = 0, limit: int = 1000) -> tuple[Record, ...]:
        start = max(after, 0)
        return tuple(self._records[start : start + limit])

    async def wait(self, after: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._grown:
                await self._grown.wait_for(lambda: len(self._records) > after)
        except TimeoutError:
            return

    async def cursor(self, source: str) -> str:
        return self._cursors.get(source, "")

    async def close(self) -> None:
        """Nothing to let go of: the same object may be used again, as a file may be opened again."""

    async def _announce(self) -> None:
        async with self._grown:
            self._grown.notify_all()
