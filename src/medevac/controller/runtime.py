"""One controller at work: the loop, the performer and all that it listens to, as one group of tasks.

The same parts run on SQLite and this machine's processes, and on the fakes of a test in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from medevac.controller.deeds import Deeds
from medevac.controller.intake import Intake
from medevac.controller.loop import Loop
from medevac.controller.patience import patiently
from medevac.controller.perform import Performer
from medevac.controller.resumed import Resumed
from medevac.controller.sources import OBSERVE_S, UNREADABLE, Alarm, follow, observe, scan
from medevac.core.actions import AnyAction, ExamineAttempt
from medevac.core.events import AnyEvent, AttemptExamined, ClusterSeen, JobSubmitted, OutputRead, WatchBegan
from medevac.core.job_recovery import OVER
from medevac.core.node_lifecycle import OUT
from medevac.core.policy import Policy
from medevac.ports.checkpoints import Checkpoints
from medevac.ports.clock import Clock
from medevac.ports.errors import ConfigError
from medevac.ports.notifier import Notifier
from medevac.ports.scheduler import Scheduler
from medevac.ports.source import Source
from medevac.ports.store import Store

SLOW_SHARE = 5.0
"""The scheduler is left alone for so many times as long as it took to tell its nodes."""

RESTING = (*OVER, "held", "gave-up")
"""States in which only a person does something next."""


log = structlog.get_logger(__name__)


class Ports(Protocol):
    """What a controller is given."""

    @property
    def store(self) -> Store: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def notifier(self) -> Notifier: ...

    @property
    def clock(self) -> Clock: ...

    def fence(self) -> None:
        """Raises `FencedOff` when another controller acts."""
        ...

    def sources(self) -> Sequence[Source]:
        """What tells of the nodes."""
        ...

    def job_sources(self, job: str) -> Sequence[Source]:
        """What tells of one job."""
        ...

    async def submissions(self, known: Collection[str]) -> tuple[JobSubmitted, ...]:
        """Jobs that came under our care and are not among `known`."""
        ...

    async def output(self, job: str, attempt: int) -> tuple[OutputRead, ...]:
        """What the output of an ended attempt says; nothing where it cannot be read."""
        ...

    async def examine(self, look: ExamineAttempt) -> tuple[AttemptExamined, ...]:
        """What is seen of an attempt that makes no progress; soon, and never an error."""
        ...

    async def over(self, job: str) -> None:
        """Called once for a job that is over: what was kept for its next attempt may go."""
        ...


class Runtime:
    """Runs until every job is over or waits for a person; a service (`endless`) until it is cancelled. `restore` comes
    first. `look_around_s`: how often nodes are looked for that were not there before; None: never.
    """

    def __init__(
        self, ports: Ports, policy: Policy, *, endless: bool = False, look_around_s: float | None = None
    ) -> None:
        self._endless = endless
        self._look_around_s = look_around_s
        self._followed: set[str] = set()
        self._ports = ports
        self._heard: dict[str, list[asyncio.Task[None]]] = {}
        self._let_go: set[str] = set()
        clock = ports.clock
        self.loop = Loop(ports.store, policy, self._perform, clock)
        self.intake = Intake(ports.store, ports.checkpoints, self._folder_of, ports.output, clock)
        deeds = Deeds(ports.scheduler, ports.checkpoints, ports.notifier, self._folder_of, ports.examine, clock)
        self.performer = Performer(deeds, self.intake.take, clock, ports.fence)
        self._pending: tuple[AnyAction, ...] = ()

    async def restore(self) -> None:
        """Take in what the log holds."""
        self._pending = await self.loop.restore()

    async def run(self, *beside: Coroutine[Any, Any, None]) -> None:
        """Work, and `beside` it these, until there is nothing to do. Raises an ExceptionGroup with what went wrong in
        any part, `FencedOff` among it.
        """
        async with asyncio.TaskGroup() as tasks:
            self.performer.begin(tasks)
            await self._introduce()
            for action in self._pending:
                self.performer.put(action, again=True)
            running = [tasks.create_task(work) for work in (*self._works(), *beside)]
            running += self._listen_to_new(tasks)
            if self._look_around_s:
                running.append(tasks.create_task(self._look_around(tasks, self._look_around_s)))
            while not await self._over(tasks) or self._endless:
                await self._ports.clock.sleep(OBSERVE_S)
            for task in (*running, *(task for heard in self._heard.values() for task in heard)):
                task.cancel()

    def _works(self) -> Iterable[Coroutine[Any, Any, None]]:
        ports = self._ports
        yield self.loop.run()
        yield observe(ports.scheduler, self.intake, ports.clock)
        yield scan(self.loop, self.intake, ports.clock)
        yield Alarm(self.loop, self.intake, ports.clock).run()

    async def _introduce(self) -> None:
        """Say that somebody looks again, and at what cluster, where that has changed."""
        seen = await patiently("the scheduler", self._ports.scheduler.cluster, self._ports.clock)
        await self.intake.take([WatchBegan(at=self._ports.clock.now()), *self._changed(seen)])

    def _changed(self, seen: ClusterSeen) -> tuple[AnyEvent, ...]:
        """What is new of the cluster: a node that people take out tells the log nothing of the others."""
        known = self.loop.view.nodes
        if {node.name for node in seen.nodes} != known.keys():
            return (seen,)
        changed = tuple(node for node in seen.nodes if node != known[node.name])
        return (replace(seen, nodes=changed, whole=False),) if changed else ()

    async def _look_around(self, tasks: asyncio.TaskGroup, every_s: float) -> None:
        """For ever: nodes that are new are taken in, and what tells of them is followed; and what people gave back."""
        said, clock, pause, resumed = "", self._ports.clock, every_s, Resumed()
        while True:
            await clock.sleep(pause)
            self._ports.fence()
            began = clock.now()
            try:
                if changed := self._changed(await self._ports.scheduler.cluster()):
                    await self.intake.take(changed)
                self._listen_to_new(tasks)
                some = any(device.state in OUT for device in self.loop.view.devices.values())
                out = await self._ports.scheduler.isolated() if some else {}
                if orders := resumed.look(self.loop.view, out, clock.now()):
                    await self.intake.take(orders)
            except (*UNREADABLE, ConfigError) as problem:
                if str(problem) != said:
                    log.warning("the nodes cannot be looked for, tried again", problem=str(problem))
                said = str(problem)
            pause = max(every_s, SLOW_SHARE * (clock.now() - began))

    def _listen_to_new(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        new = [source for source in self._ports.sources() if source.name not in self._followed]
        self._followed.update(source.name for source in new)
        return [self._listen(tasks, source) for source in new]

    async def _over(self, tasks: asyncio.TaskGroup) -> bool:
        """Take new jobs in and let old ones go; True when nothing is left to do for any."""
        new = await self._ports.submissions(self.loop.view.jobs.keys())
        if new:
            await self.intake.take(new)
        jobs = self.loop.view.jobs
        for name, job in jobs.items():
            if job.state not in RESTING and name not in self._heard:
                self._let_go.discard(name)
                self._heard[name] = [self._listen(tasks, source) for source in self._ports.job_sources(name)]
            elif job.state in OVER and name not in self._let_go:
                self._let_go.add(name)
                for task in self._heard.pop(name, []):
                    task.cancel()
                await self._ports.over(name)
        quiet = bool(jobs) and not new and self.performer.idle
        if not quiet or any(job.state not in RESTING for job in jobs.values()):
            return False
        read = partial(self._ports.store.records, after=self.loop.cursor, limit=1)
        return not await patiently("store", read, self._ports.clock)

    def _listen(self, tasks: asyncio.TaskGroup, source: Source) -> asyncio.Task[None]:
        ports = self._ports
        return tasks.create_task(follow(source, self.intake, ports.store, ports.clock))

    def _perform(self, action: AnyAction) -> None:
        self.performer.put(action)

    def _folder_of(self, job: str) -> str | None:
        known = self.loop.view.jobs.get(job)
        return known.spec.policy.checkpoint_dir if known else None
