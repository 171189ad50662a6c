"""What the controller listens to: sources, the scheduler, checkpoint folders, and the passing of time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from medevac.controller.intake import Heard, Intake
from medevac.controller.loop import Loop
from medevac.controller.patience import pauses
from medevac.core.events import AnyEvent, TimePassed, WatchBegan
from medevac.core.job_recovery import ALIVE
from medevac.ports.clock import Clock
from medevac.ports.errors import BadReply, OutcomeUnknown, Refused, Unavailable
from medevac.ports.scheduler import Scheduler
from medevac.ports.source import Source
from medevac.ports.store import Store

OBSERVE_S = 0.15
SCAN_S = 0.5
WAITING_EVENTS = 10_000

LOOK_S = 1.0
"""The longest the alarm sleeps at a time."""

STOOD_STILL_S = 3.0
"""A pause longer than that was no sleep of ours: the process was stopped, or the machine."""

SOONEST_S, LATEST_S = 0.05, 5.0
"""Between two `TimePassed`; longer each time while nothing comes of it."""

UNREADABLE = (Unavailable, BadReply, OutcomeUnknown)
log = structlog.get_logger(__name__)


async def follow(source: Source, intake: Intake, store: Store, clock: Clock) -> None:
    """Take in a source's events for ever; one that cannot be read is tried again, and said once."""
    queue: asyncio.Queue[Heard] = asyncio.Queue(WAITING_EVENTS)
    forget = intake.heard_through(queue)
    writer = asyncio.create_task(_write(source.name, queue, intake))
    said, tries = False, pauses()
    try:
        while True:
            try:
                async for event, cursor in _ending_with(writer, source.follow(await store.cursor(source.name))):
                    await queue.put((event, cursor))
                    said, tries = False, pauses()
            except UNREADABLE as problem:
                if not said:
                    log.warning("a source cannot be read, tried again", source=source.name, problem=str(problem))
                said = True
            await clock.sleep(next(tries))
    finally:
        forget()
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer


async def _ending_with(
    writer: asyncio.Task[None], events: AsyncIterator[tuple[AnyEvent, str]]
) -> AsyncIterator[tuple[AnyEvent, str]]:
    """The events, unless what writes them down has failed: then its error."""
    async for one in events:
        if writer.done():
            writer.result()
        yield one


async def _write(name: str, queue: asyncio.Queue[Heard], intake: Intake) -> None:
    """Batches grow by themselves while the disk is busy."""
    while True:
        batch = [await queue.get()]
        while not queue.empty():
            batch.append(queue.get_nowait())
        events, cursor = [event for event, _ in batch], (name, batch[-1][1])
        try:
            await intake.take(events, cursor=cursor)
        except Refused:
            await _one_by_one(events, cursor, intake)
        finally:
            for _ in batch:
                queue.task_done()


async def _one_by_one(events: list[AnyEvent], cursor: tuple[str, str], intake: Intake) -> None:
    """One of them cannot be stored: that one is left out, and said."""
    for event in events:
        try:
            await intake.take((event,), cursor=cursor)
        except Refused as problem:
            log.warning("an event was left out", problem=str(problem))


async def observe(scheduler: Scheduler, intake: Intake, clock: Clock) -> None:
    """Take in what the scheduler shows, for ever."""
    said = False
    while True:
        try:
            if events := intake.new(await scheduler.observe()):
                await intake.take(events)
            said = False
        except UNREADABLE as problem:
            if not said:
                log.warning("the scheduler cannot be read, tried again", problem=str(problem))
            said = True
        await clock.sleep(OBSERVE_S)


async def scan(loop: Loop, intake: Intake, clock: Clock) -> None:
    """Look into the checkpoint folders of running jobs, for ever."""
    unreadable: set[str] = set()
    while True:
        for name, job in loop.view.jobs.items():
            folder = job.spec.policy.checkpoint_dir
            if not folder or job.state not in ALIVE:
                continue
            try:
                await intake.scan(name, folder)
                unreadable.discard(folder)
            except Unavailable as problem:
                if folder not in unreadable:
                    log.warning("a checkpoint folder cannot be read, tried again", folder=folder, problem=str(problem))
                unreadable.add(folder)
        await clock.sleep(SCAN_S)


class Alarm:
    """Says that time has passed when that makes a difference; never while it cannot know what happened meanwhile."""

    def __init__(self, loop: Loop, intake: Intake, clock: Clock) -> None:
        self._loop = loop
        self._intake = intake
        self._clock = clock
        self._looked = clock.now()
        self._last: float | None = None
        self._pause = SOONEST_S
        self._not_before = 0.0

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()

    async def look(self) -> None:
        """Once: wait for the deadline (or for a while), or say that it came."""
        now, deadline = self._clock.now(), self._loop.view.deadline()
        if now - self._looked > STOOD_STILL_S:
            await self._say(WatchBegan(at=now))
            self._looked = self._clock.now()
            return
        self._looked = now
        due = max(deadline, self._not_before) if deadline is not None and deadline == self._last else deadline
        if due is not None and due <= now:
            await self._ring(now, deadline)
            return
        self._loop.grown.clear()
        wait = LOOK_S if due is None else min(due - now, LOOK_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loop.grown.wait(), max(wait, 0.001))

    async def _ring(self, now: float, deadline: float | None) -> None:
        self._pause = min(2 * self._pause, LATEST_S) if deadline == self._last else SOONEST_S
        self._last = deadline
        await self._say(TimePassed(at=now))
        self._not_before = self._clock.now() + self._pause

    async def _say(self, event: AnyEvent) -> None:
        """Write it down and wait until it was decided on."""
        (record,) = await self._intake.take((event,))
        while self._loop.view.seq < record.seq:
            self._loop.grown.clear()
            await self._loop.grown.wait()
