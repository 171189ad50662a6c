"""What comes into the log: stamped, complete, each fact once.

A job's end is only taken together with a whole look at its checkpoint folder, since what is decided on it hangs on
which checkpoints there are; so is a job's beginning. A folder that cannot be read now is waited for: what is
unreadable is not empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from medevac.controller.deeds import FolderOf
from medevac.controller.patience import patiently
from medevac.core.events import AnyEvent, AttemptEnded, JobSubmitted, OutputRead
from medevac.ports.checkpoints import Checkpoints
from medevac.ports.clock import Clock
from medevac.ports.store import EventRecord, Store

Heard: TypeAlias = tuple[AnyEvent, str]
"""An event of a source, and the cursor after it."""

OutputOf: TypeAlias = Callable[[str, int], Awaitable[tuple[OutputRead, ...]]]
"""What the output of a job's ended attempt says; nothing where it cannot be read."""

LAST_WORDS_S = 0.05
"""How long what a rank sent before it died may take through the socket."""

DRAIN_S = 5.0
"""How long the sources' events wait to be written before an attempt's end is written all the same."""


class Intake:
    """Writes events into the store, waiting for it where it must."""

    def __init__(
        self, store: Store, checkpoints: Checkpoints, folder_of: FolderOf, output_of: OutputOf, clock: Clock
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._folder_of = folder_of
        self._output_of = output_of
        self._clock = clock
        self._known: set[str] = set()
        self._queues: list[asyncio.Queue[Heard]] = []

    def heard_through(self, queue: asyncio.Queue[Heard]) -> Callable[[], None]:
        """Name a queue whose events come before an attempt's end; returns what takes the name back."""
        self._queues.append(queue)
        return lambda: self._queues.remove(queue)

    def new(self, events: Iterable[AnyEvent]) -> tuple[AnyEvent, ...]:
        """Those that were not taken since this controller began."""
        return tuple(event for event in events if event.id not in self._known)

    async def take(
        self, events: Sequence[AnyEvent], *, cursor: tuple[str, str] | None = None
    ) -> tuple[EventRecord, ...]:
        """Write them down, and before an attempt's end and after a job's beginning what its folder holds."""
        batch: list[AnyEvent] = []
        for event in events:
            fresh = event.id not in self._known
            if fresh and isinstance(event, AttemptEnded):
                await self._last_words()
                batch += await self._scanned(event.job, self._folder_of(event.job))
                batch += await self._output_of(event.job, event.attempt)
            batch.append(event)
            if fresh and isinstance(event, JobSubmitted):
                batch += await self._scanned(event.job, event.policy.checkpoint_dir)
        now = self._clock.now()
        stamped = [event if event.seen_at else msgspec.structs.replace(event, seen_at=now) for event in batch]
        taken = await patiently("store", lambda: self._store.append_events(stamped, cursor=cursor), self._clock)
        self._known.update(event.id for event in batch if event.id)
        return taken

    async def scan(self, job: str, folder: str) -> None:
        """Take what is new in a job's checkpoint folder. Raises `Unavailable`."""
        if found := self.new(await self._checkpoints.scan(job, folder)):
            await self.take(found)

    async def _scanned(self, job: str, folder: str | None) -> tuple[AnyEvent, ...]:
        if not folder:
            return ()
        return self.new(await patiently(folder, lambda: self._checkpoints.scan(job, folder), self._clock))

    async def _last_words(self) -> None:
        """Let what was heard of the attempt before its end be written before it."""
        await self._clock.sleep(LAST_WORDS_S)
        waits = [asyncio.create_task(queue.join()) for queue in self._queues]
        if waits:
            _, late = await asyncio.wait(waits, timeout=DRAIN_S)
            for task in late:
                task.cancel()
