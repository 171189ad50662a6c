"""Each kind of action, done through its port, and read back from the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from medevac.core.actions import (
    AnyAction,
    ExamineAttempt,
    FinishJob,
    GiveBack,
    HoldJob,
    Isolate,
    JudgeCheckpoint,
    Page,
    PointClean,
    ReleaseJob,
    Repair,
    RequestCheckpoint,
    Restrict,
    StartAttempt,
    StopAttempt,
    VerifyCheckpoint,
)
from medevac.core.events import AnyEvent, AttemptEnded, AttemptExamined, AttemptStarted, CheckpointVerified
from medevac.ports.checkpoints import Checkpoints
from medevac.ports.clock import Clock
from medevac.ports.errors import Refused, Unsupported
from medevac.ports.notifier import Notifier
from medevac.ports.scheduler import Scheduler

NEVER_RAN = 137
"""The code of an attempt that was to be stopped and had never been started."""

FolderOf = Callable[[str], str | None]
"""A job's checkpoint folder, None for a job without."""

Examine = Callable[[ExamineAttempt], Awaitable[tuple[AttemptExamined, ...]]]
"""What is seen of an attempt that hangs; soon, nothing where it cannot be seen, and never an error."""


class Deeds:
    """The ports together, as one who acts on all of them. Raises the errors of `ports.errors`."""

    def __init__(
        self,
        scheduler: Scheduler,
        checkpoints: Checkpoints,
        notifier: Notifier,
        folder_of: FolderOf,
        examine: Examine,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._checkpoints = checkpoints
        self._notifier = notifier
        self._folder_of = folder_of
        self._examine = examine
        self._clock = clock

    async def before(self, action: AnyAction) -> tuple[AnyEvent, ...]:
        """What can only be seen before the action is done."""
        if isinstance(action, StopAttempt) and action.examine:
            look = ExamineAttempt(id=f"{action.id}/look", job=action.job, attempt=action.attempt)
            return await self._examine(look)
        return ()

    async def do(self, action: AnyAction) -> tuple[AnyEvent, ...]:
        """Have it done; returns what was seen to happen."""
        match action:
            case StartAttempt():
                return (await self._scheduler.start(action),)
            case StopAttempt():
                return (await self._scheduler.stop(action) or self._never_ran(action),)
            case ExamineAttempt():
                return await self._examine(action)
            case VerifyCheckpoint():
                return (await self._verified(action),)
            case JudgeCheckpoint():
                await self._checkpoints.judge(action, self._folder(action.job))
            case PointClean():
                await self._checkpoints.point(action, self._folder(action.job))
            case Page():
                await self._notifier.page(action)
            case FinishJob():
                await self._scheduler.finish(action)
            case _:
                await self._order(action)
        return ()

    async def _order(
        self, action: Isolate | Restrict | Repair | GiveBack | RequestCheckpoint | HoldJob | ReleaseJob
    ) -> None:
        scheduler = self._scheduler
        match action:
            case Isolate():
                await scheduler.isolate(action)
            case Restrict():
                await scheduler.restrict(action)
            case Repair():
                await scheduler.repair(action)
            case GiveBack():
                await scheduler.give_back(action)
            case RequestCheckpoint():
                await scheduler.request_checkpoint(action)
            case HoldJob():
                await scheduler.hold(action)
            case ReleaseJob():
                await scheduler.release(action)

    async def seen(self, action: AnyAction) -> tuple[AnyEvent, ...] | None:
        """What shows in the world that it was done already; None: nothing shows it."""
        scheduler, checkpoints = self._scheduler, self._checkpoints
        done = False
        match action:
            case Isolate():
                mode = (await scheduler.isolated()).get(action.gpu or action.node)
                done = mode in {action.mode, "hard"}
            case HoldJob():
                done = (await scheduler.holds()).get(action.job) == action.purpose
            case ReleaseJob():
                done = action.job not in await scheduler.holds()
            case StartAttempt():
                return await self._told(AttemptStarted, action)
            case StopAttempt():
                return await self._told(AttemptEnded, action)
            case JudgeCheckpoint():
                done = (await checkpoints.judged(self._folder(action.job))).get(action.step) == action.state
            case PointClean():
                done = await checkpoints.pointed(self._folder(action.job)) == action.step
            case _:
                pass  # harmless twice; of a restriction given back, nothing shows in what is isolated
        return () if done else None

    async def _told(
        self, kind: type[AttemptStarted | AttemptEnded], action: StartAttempt | StopAttempt
    ) -> tuple[AnyEvent, ...] | None:
        for event in await self._scheduler.observe():
            if isinstance(event, kind) and (event.job, event.attempt) == (action.job, action.attempt):
                return (event,)
        return None

    async def _verified(self, action: VerifyCheckpoint) -> CheckpointVerified:
        """A checkpoint that is not there any more is one that cannot be resumed from."""
        try:
            return await self._checkpoints.verify(action, self._folder(action.job))
        except Refused as problem:
            return CheckpointVerified(
                at=self._clock.now(),
                id=f"{action.id}/verified",
                job=action.job,
                step=action.step,
                ok=False,
                problem=str(problem),
            )

    def _never_ran(self, action: StopAttempt) -> AttemptEnded:
        return AttemptEnded(
            at=self._clock.now(),
            id=f"{action.job}/{action.attempt}/ended",
            job=action.job,
            attempt=action.attempt,
            code=NEVER_RAN,
            why="stopped",
        )

    def _folder(self, job: str) -> str:
        folder = self._folder_of(job)
        if not folder:
            raise Unsupported(f"job {job}: has no checkpoint folder; give one with --checkpoint-dir")
        return folder
