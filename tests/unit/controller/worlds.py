"""A controller on fakes: a scheduler without processes, a store in memory, the event loop's own time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, cast

from medevac.adapters.schedulers.memory import MemoryScheduler, MemoryWorld
from medevac.adapters.schedulers.spec import JobSpec, submitted
from medevac.adapters.store.memory import MemoryStore
from medevac.catalog.policy import load_policy
from medevac.controller.runtime import Runtime
from medevac.core.actions import AnyAction, ExamineAttempt, JudgeCheckpoint, Page, PointClean, VerifyCheckpoint
from medevac.core.decision import Decision
from medevac.core.events import (
    ActionSettled,
    AnyEvent,
    AttemptExamined,
    CheckpointSealed,
    CheckpointVerified,
    Gpu,
    JobPolicy,
    JobSubmitted,
    Node,
    OutputRead,
    SealRank,
    StepReported,
)
from medevac.core.policy import Policy
from medevac.ports.checkpoints import Checkpoints
from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable
from medevac.ports.notifier import Notifier
from medevac.ports.scheduler import Scheduler
from medevac.ports.source import Source
from medevac.ports.store import DecisionRecord, EventRecord, Store

EPOCH = 1_800_000_000.0
POLICY = load_policy("local")
NODES = tuple(
    Node(name=f"n{n}", gpus=tuple(Gpu(index=i, uuid=f"g{n}{i}", pci=f"0000:{i + 1}0:00.0") for i in range(3)))
    for n in range(2)
)


class LoopClock:
    """The event loop's time as a wall clock."""

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Faulty:
    """Passes everything on to a port; `before` and `after` are the errors that calls of a method raise next, without
    or after doing it; `slow` how long a method takes.
    """

    def __init__(self, port: object) -> None:
        self.port = port
        self.before: dict[str, list[Exception]] = {}
        self.after: dict[str, list[Exception]] = {}
        self.slow: dict[str, float] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.port, name)
        return self._around(name, found) if callable(found) else found

    def _around(self, name: str, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def faulty(*given: object, **named: object) -> object:
            self.calls.append(name)
            await asyncio.sleep(self.slow.get(name, 0.0))
            if errors := self.before.get(name):
                raise errors.pop(0)
            result = await call(*given, **named)
            if errors := self.after.get(name):
                raise errors.pop(0)
            return result

        return faulty


class MemoryCheckpoints:
    """One folder for each job, in memory."""

    def __init__(self) -> None:
        self.sealed: dict[str, list[CheckpointSealed]] = {}
        self.verdicts: list[tuple[int, str]] = []
        self.clean: int | None = None

    async def scan(self, job: str, folder: str) -> tuple[AnyEvent, ...]:
        return tuple(self.sealed.get(job, ()))

    async def verify(self, action: VerifyCheckpoint, folder: str) -> CheckpointVerified:
        return CheckpointVerified(at=1.0, id=f"{action.id}/verified", job=action.job, step=action.step, ok=True)

    async def judge(self, action: JudgeCheckpoint, folder: str) -> None:
        self.verdicts.append((action.step, action.state))

    async def point(self, action: PointClean, folder: str) -> None:
        self.clean = action.step

    async def pointed(self, folder: str) -> int | None:
        return self.clean

    async def judged(self, folder: str) -> dict[int, str]:
        return dict(self.verdicts)


class Pages:
    """What a person was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def page(self, action: Page) -> None:
        self.texts.append(action.text)


class ListSource:
    """Tells a test's events; `broken` times it cannot be read first."""

    def __init__(self, name: str = "list", broken: int = 0) -> None:
        self.name = name
        self.broken = broken
        self.queue: asyncio.Queue[AnyEvent] = asyncio.Queue()

    async def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        while True:
            if self.broken:
                self.broken -= 1
                raise Unavailable("not readable now")
            event = await self.queue.get()
            yield event, event.id


class World:
    """Everything that outlives a controller, and the ports that one is given."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.clock: Clock = LoopClock()
        self.cluster = MemoryWorld(NODES, now=self.clock.now)
        self.files = MemoryCheckpoints()
        self.pages = Pages()
        self.memory = MemoryStore()
        self.faulty = {
            "scheduler": Faulty(MemoryScheduler(self.cluster)),
            "checkpoints": Faulty(self.files),
            "notifier": Faulty(self.pages),
            "store": Faulty(self.memory),
        }
        self.nodes: list[Source] = []
        self.fenced: Exception | None = None
        self.ended: list[str] = []
        self.seen: list[AttemptExamined] = []

    # --- what the controller is given (controller.runtime.Ports) ----------------------------------------------------

    @property
    def store(self) -> Store:
        return cast("Store", self.faulty["store"])

    @property
    def scheduler(self) -> Scheduler:
        return cast("Scheduler", self.faulty["scheduler"])

    @property
    def checkpoints(self) -> Checkpoints:
        return cast("Checkpoints", self.faulty["checkpoints"])

    @property
    def notifier(self) -> Notifier:
        return cast("Notifier", self.faulty["notifier"])

    def fence(self) -> None:
        if self.fenced:
            raise self.fenced

    def sources(self) -> Sequence[Source]:
        return self.nodes

    def job_sources(self, job: str) -> Sequence[Source]:
        return ()

    async def submissions(self, known: Collection[str]) -> tuple[JobSubmitted, ...]:
        return tuple(submitted(spec, "memory") for spec in self.cluster.jobs.values() if spec.job not in known)

    async def output(self, job: str, attempt: int) -> tuple[OutputRead, ...]:
        return ()

    async def examine(self, look: ExamineAttempt) -> tuple[AttemptExamined, ...]:
        return tuple(event for event in self.seen if (event.job, event.attempt) == (look.job, look.attempt))

    async def over(self, job: str) -> None:
        self.ended.append(job)

    # --- what a test does -------------------------------------------------------------------------------------------

    def runtime(self) -> Runtime:
        return Runtime(self, self.policy)

    async def run(self) -> Runtime:
        """A new controller, to its end."""
        runtime = self.runtime()
        await runtime.restore()
        async with asyncio.timeout(3600):
            await runtime.run()
        return runtime

    async def submit(self, job: str = "train", ranks: int = 2) -> None:
        policy = JobPolicy(checkpoint_dir=f"/{job}")
        spec = JobSpec(job=job, command=("true",), ranks=ranks, checkpoint_dir=f"/{job}", policy=policy)
        await MemoryScheduler(self.cluster).submit(spec)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(600):
            while not what():
                await asyncio.sleep(0.05)

    async def started(self, attempt: int = 1, job: str = "train") -> None:
        await self.until(lambda: (job, attempt) in self.cluster.started)

    async def step(self, step: int, attempt: int = 1, *, job: str = "train") -> None:
        await self.tell(StepReported(at=self.clock.now(), job=job, attempt=attempt, step=step))

    async def tell(self, event: AnyEvent) -> None:
        await self.memory.append_events((event,))

    def seal(self, step: int, attempt: int = 1, job: str = "train") -> None:
        places = self.cluster.started[job, attempt].ranks
        ranks = tuple(SealRank(rank=p.rank, node=p.node, gpu_uuid=p.gpus[0]) for p in places)
        event = CheckpointSealed(
            at=self.clock.now(), id=f"{job}/{step}/{attempt}", job=job, attempt=attempt, step=step, ranks=ranks
        )
        self.files.sealed.setdefault(job, []).append(event)

    # --- what came of it --------------------------------------------------------------------------------------------

    async def log(self) -> list[EventRecord | DecisionRecord]:
        return list(await self.memory.records(limit=100_000))

    async def events(self, kind: type[AnyEvent] | type) -> list[Any]:
        return [r.event for r in await self.log() if isinstance(r, EventRecord) and isinstance(r.event, kind)]

    async def decisions(self) -> list[Decision]:
        return [r.decision for r in await self.log() if isinstance(r, DecisionRecord)]

    async def actions(self) -> list[AnyAction]:
        return [action for decision in await self.decisions() for action in decision.actions]

    async def outcomes(self, action: str) -> list[str]:
        """What became of the actions whose id holds this."""
        return [event.outcome for event in await self.events(ActionSettled) if action in event.action]
