"""The performer: has each action done, reads its outcome back, and says in the log what became of it.

Actions on one subject (a job, a device) are done in order; subjects do not wait for each other. What cannot be
reached is tried until it can; what was sent and not answered is read back before it is tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import structlog

from medevac.controller.deeds import Deeds
from medevac.controller.patience import pauses
from medevac.core.actions import (
    AnyAction,
    ExamineAttempt,
    GiveBack,
    Isolate,
    JudgeCheckpoint,
    Page,
    Repair,
    Restrict,
    VerifyCheckpoint,
)
from medevac.core.events import ActionSettled, AnyEvent
from medevac.ports.clock import Clock
from medevac.ports.errors import BadReply, NoRoomError, OutcomeUnknown, Refused, Unavailable, Unsupported

Record: TypeAlias = Callable[[tuple[AnyEvent, ...]], Awaitable[object]]
"""Writes events into the log; returns when they are durable."""

Outcome: TypeAlias = Literal["done", "refused", "no-room", "unsupported", "unknown"]
log = structlog.get_logger(__name__)


class Performer:
    """`fence` is asked before each step on the world and raises `FencedOff` when another controller acts; that ends
    the task group.
    """

    def __init__(self, deeds: Deeds, record: Record, clock: Clock, fence: Callable[[], None] = lambda: None) -> None:
        self._deeds = deeds
        self._record = record
        self._clock = clock
        self._fence = fence
        self._tasks: asyncio.TaskGroup | None = None
        self._waiting: dict[str, deque[tuple[AnyAction, bool]]] = {}

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Work in this task group from now on."""
        self._tasks = tasks

    @property
    def idle(self) -> bool:
        """Nothing is to be done."""
        return not self._waiting

    def put(self, action: AnyAction, *, again: bool = False) -> None:
        """Have it done. `again`: it may have been done before, so the world is read first."""
        assert self._tasks is not None, "begin comes first"
        subject = subject_of(action)
        if subject in self._waiting:
            self._waiting[subject].append((action, again))
            return
        self._waiting[subject] = deque([(action, again)])
        self._tasks.create_task(self._work(subject))

    async def _work(self, subject: str) -> None:
        queue = self._waiting[subject]
        while queue:
            action, again = queue[0]
            await self.settle(action, again=again)
            queue.popleft()
        del self._waiting[subject]

    async def settle(self, action: AnyAction, *, again: bool = False) -> None:
        """Do it until its outcome is known, and record that."""
        unsure, said = again, False
        for pause in pauses():
            try:
                self._fence()
                events = await self._deeds.seen(action) if unsure else None
                if events is None:
                    if told := await self._deeds.before(action):
                        await self._record(told)
                    events = await self._deeds.do(action)
            except Refused as problem:
                outcome: Outcome = "no-room" if isinstance(problem, NoRoomError) else "refused"
                return await self._settled(action, outcome, str(problem))
            except Unsupported as problem:
                return await self._settled(action, "unsupported", str(problem))
            except (Unavailable, OutcomeUnknown, BadReply) as problem:
                unsure = unsure or not isinstance(problem, Unavailable)
                if not said:
                    log.warning("not done yet, tried again", action=action.id, problem=str(problem))
                    await self._settled(action, "unknown", str(problem))
                said = True
            else:
                return await self._settled(action, "done", events=events)
            await self._clock.sleep(pause)
        return None

    async def _settled(
        self, action: AnyAction, outcome: Outcome, why: str = "", events: tuple[AnyEvent, ...] = ()
    ) -> None:
        """What was seen to happen and the outcome, in one transaction."""
        told = ActionSettled(
            at=self._clock.now(), id=f"{action.id}:{outcome}", action=action.id, outcome=outcome, why=why
        )
        await self._record((*events, told))


def subject_of(action: AnyAction) -> str:
    """What must not be acted on twice at a time. Long reads and verdicts do not hold up the job's processes."""
    match action:
        case Isolate() | Restrict() | GiveBack():
            return f"device {action.gpu or action.node}"
        case Repair():
            return f"repair of {action.gpu or action.node}"
        case VerifyCheckpoint():
            return f"files of {action.job}"
        case JudgeCheckpoint():
            return f"lineage of {action.job}"
        case ExamineAttempt():
            return f"looks at {action.job}"
        case Page():
            return "pages"
        case _:
            return f"job {action.job}"
