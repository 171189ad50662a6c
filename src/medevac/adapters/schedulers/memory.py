"""A scheduler without processes: attempts run until they are told to end. For simulations and tests.

A `MemoryWorld` is what outlives the scheduler object, as state files and processes outlive the local one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from medevac.adapters.schedulers.spec import JobSpec, check, submitted
from medevac.core.actions import (
    FinishJob,
    GiveBack,
    HoldJob,
    Isolate,
    ReleaseJob,
    Repair,
    RequestCheckpoint,
    Restrict,
    StartAttempt,
    StopAttempt,
)
from medevac.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    ClusterSeen,
    JobSubmitted,
    Node,
    RankExit,
    RankPlace,
)
from medevac.ports.errors import Refused, Unsupported

_KILLED = 137


class MemoryWorld:
    """Nodes, jobs and attempts. `now` gives unix seconds, of a simulation's clock or the wall's."""

    def __init__(self, nodes: Sequence[Node], *, now: Callable[[], float] = time.time) -> None:
        self.nodes = tuple(nodes)
        self.now = now
        self.jobs: dict[str, JobSpec] = {}
        self.started: dict[tuple[str, int], AttemptStarted] = {}
        self.ended: dict[tuple[str, int], AttemptEnded] = {}
        self.out: dict[str, str] = {}
        self.holds: dict[str, str] = {}
        self.requests: list[RequestCheckpoint] = []
        self.done: set[str] = set()

    def running(self) -> list[AttemptStarted]:
        """Attempts that have not ended."""
        return [started for key, started in self.started.items() if key not in self.ended]

    def end(self, job: str, attempt: int, codes: Sequence[int] = (0,), *, why: str = "") -> AttemptEnded:
        """End an attempt: rank 0 with the first code, and so on, the last code for the rest; failures come first."""
        key, now = (job, attempt), self.now()
        if key in self.ended:
            return self.ended[key]
        ranks = self.started[key].ranks
        exits = [_exit(place, codes[min(i, len(codes) - 1)], now) for i, place in enumerate(ranks)]
        exits.sort(key=lambda one: one.code in {0, 83})
        code = next((one.code for one in exits if one.code not in {0, 83}), max(one.code for one in exits))
        self.ended[key] = AttemptEnded(
            at=now,
            id=f"{job}/{attempt}/ended",
            source="memory",
            job=job,
            attempt=attempt,
            code=code,
            exits=tuple(exits),
            why=why,
        )
        return self.ended[key]


def _exit(place: RankPlace, code: int, at: float) -> RankExit:
    return RankExit(rank=place.rank, code=code, signal=max(code - 128, 0), at=at)


class MemoryScheduler:
    """`ports.scheduler.Scheduler` on a `MemoryWorld`."""

    name = "memory"

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world

    async def submit(self, spec: JobSpec) -> JobSubmitted:
        """As the local scheduler's."""
        check(spec)
        known = self.world.jobs.setdefault(spec.job, msgspec.structs.replace(spec, at=spec.at or self.world.now()))
        if msgspec.structs.replace(known, at=spec.at) != spec:
            raise Refused(f"job {spec.job}: another job of this name was submitted before; use another name")
        return submitted(known, self.name)

    async def cluster(self) -> ClusterSeen:
        return ClusterSeen(at=self.world.now(), source=self.name, nodes=self.world.nodes)

    async def observe(self) -> tuple[AnyEvent, ...]:
        return (*self.world.started.values(), *self.world.ended.values())

    async def isolated(self) -> dict[str, str]:
        return dict(self.world.out)

    async def isolate(self, action: Isolate) -> None:
        gpus = {node.name: {gpu.uuid for gpu in node.gpus} for node in self.world.nodes}
        if action.node not in gpus or (action.gpu and action.gpu not in gpus[action.node]):
            raise Refused(f"{action.node} {action.gpu}: there is no such part")
        target = action.gpu or action.node
        if self._first_time(action.id) and not (action.mode == "soft" and target in self.world.out):
            self.world.out[target] = action.mode

    async def restrict(self, action: Restrict) -> None:
        raise Unsupported(f"{action.gpu or action.node}: work cannot be told to prefer others")

    async def repair(self, action: Repair) -> None:
        raise Unsupported(f"{action.gpu or action.node}: nobody can do a {action.how}; it stays out")

    async def give_back(self, action: GiveBack) -> None:
        if self._first_time(action.id):
            self.world.out.pop(action.gpu or action.node, None)

    async def start(self, action: StartAttempt) -> AttemptStarted:
        self._job(action.job)
        key = (action.job, action.attempt)
        if key not in self.world.started:
            self._check_start(action)
            self.world.started[key] = AttemptStarted(
                at=self.world.now(),
                id=f"{action.job}/{action.attempt}/started",
                source=self.name,
                job=action.job,
                attempt=action.attempt,
                ranks=action.ranks,
                resume_from=action.resume_from,
            )
        return self.world.started[key]

    async def stop(self, action: StopAttempt) -> AttemptEnded | None:
        self._job(action.job)
        key = (action.job, action.attempt)
        if key not in self.world.started:
            return None
        return self.world.end(action.job, action.attempt, (_KILLED,), why="stopped")

    async def request_checkpoint(self, action: RequestCheckpoint) -> None:
        self._job(action.job)
        key = (action.job, action.attempt)
        if key not in self.world.started or key in self.world.ended:
            raise Refused(f"job {action.job}: attempt {action.attempt} does not run")
        if self._first_time(action.id):
            self.world.requests.append(action)

    async def hold(self, action: HoldJob) -> None:
        self._job(action.job)
        if self._first_time(action.id) and self.world.holds.get(action.job) != "person":
            self.world.holds[action.job] = action.purpose

    async def release(self, action: ReleaseJob) -> None:
        self._job(action.job)
        if self._first_time(action.id):
            self.world.holds.pop(action.job, None)

    async def finish(self, action: FinishJob) -> None:
        """Nothing of a job is left here when its attempt is over."""

    async def holds(self) -> dict[str, str]:
        return dict(self.world.holds)

    def _first_time(self, action: str) -> bool:
        new = action not in self.world.done
        self.world.done.add(action)
        return new

    def _job(self, job: str) -> JobSpec:
        if job not in self.world.jobs:
            raise Refused(f"job {job}: there is none")
        return self.world.jobs[job]

    def _check_start(self, action: StartAttempt) -> None:
        if purpose := self.world.holds.get(action.job):
            raise Refused(f"job {action.job} is held ({purpose}); release it first")
        if others := [one.attempt for one in self.world.running() if one.job == action.job]:
            raise Refused(f"job {action.job}: attempt {others[0]} still runs; stop it first")
        if not action.ranks:
            raise Refused(f"job {action.job}: attempt {action.attempt} has no places to run at")
        gpus = {node.name: {gpu.uuid for gpu in node.gpus} for node in self.world.nodes}
        for place in action.ranks:
            if place.node not in gpus or not set(place.gpus) <= gpus[place.node]:
                raise Refused(f"rank {place.rank}: node {place.node} with {', '.join(place.gpus)} does not exist")
            if taken := [target for target in (place.node, *place.gpus) if target in self.world.out]:
                raise Refused(f"rank {place.rank}: {taken[0]} is isolated ({self.world.out[taken[0]]})")
