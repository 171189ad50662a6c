"""`LocalScheduler`: jobs as process groups of this machine, all of its state in files.

A fresh object on the same state folder sees and does what the one before would have: nothing is kept in memory that
a later call needs. Each call works in a thread, so that a slow disk never stops the controller's loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from medevac.adapters.schedulers.local import files, launch, machine, processes
from medevac.adapters.schedulers.local.ending import clear_savers, close_lost, stop
from medevac.adapters.schedulers.local.family import Family
from medevac.adapters.schedulers.local.files import Attempt
from medevac.adapters.schedulers.local.isolation import Holds, Isolation
from medevac.adapters.schedulers.spec import JobSpec, check, submitted
from medevac.adapters.topology import load_topology
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
from medevac.core.events import AnyEvent, AttemptEnded, AttemptStarted, ClusterSeen, JobSubmitted, Node
from medevac.ports.errors import Refused, Unavailable, Unsupported

T = TypeVar("T")

Send = Callable[[str, int], Awaitable[int]]
"""Passes a request to the ranks of an attempt that listen; returns how many."""

_REPEATED = 2
"""Attempts of each job that every `observe` tells again; the first call tells all."""


class LocalScheduler:
    """The embedded scheduler (`ports.scheduler.Scheduler`).

    With a cluster folder it has the nodes of its `topology.toml`; without one, this machine and its GPUs. `shm` is
    where shared memory is searched for what ended attempts left.
    """

    name = files.SOURCE

    def __init__(self, state_dir: Path, cluster: Path | None = None, *, shm: Path = Path("/dev/shm")) -> None:  # noqa: S108
        self.state = state_dir.absolute()
        self._cluster = cluster
        self._shm = shm
        self._isolation = Isolation(self.state)
        self._senders: dict[str, Send] = {}
        self._seen: ClusterSeen | None = None
        self._told = False
        self._over: dict[Path, tuple[AnyEvent, ...]] = {}  # what will never change, read once

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def submit(self, spec: JobSpec) -> JobSubmitted:
        """Take a job under care; the same again changes nothing. Raises `Refused` for another job of that name, a
        command or folder that does not exist.
        """
        return await _work(lambda: self._submit(spec))

    async def spec(self, job: str) -> JobSpec:
        """The job as submitted. Raises `Refused` where there is none."""
        return await _work(lambda: self._spec(job))

    def attach(self, job: str, send: Send) -> None:
        """Requests to the job's ranks go through `send` from now on (the in-job hub's)."""
        self._senders[job] = send

    async def clear_savers(self, job: str) -> None:
        """End the job's checkpoint savers and remove their segments: for when the next attempt has loaded, or the
        job is finished.
        """
        await _work(lambda: clear_savers(self._job(job), self._shm))

    # --- ports.scheduler.Scheduler ----------------------------------------------------------------------------------

    async def cluster(self) -> ClusterSeen:
        return await _work(self._look)

    async def observe(self) -> tuple[AnyEvent, ...]:
        return await _work(self._observe)

    async def isolated(self) -> dict[str, str]:
        return await _work(self._isolation.modes)

    async def isolate(self, action: Isolate) -> None:
        await _work(lambda: self._isolate(action))

    async def restrict(self, action: Restrict) -> None:
        raise Unsupported(f"{action.gpu or action.node}: on one machine nothing else could be preferred")

    async def repair(self, action: Repair) -> None:
        raise Unsupported(f"{action.gpu or action.node}: nobody here can do a {action.how}; it stays out")

    async def give_back(self, action: GiveBack) -> None:
        await _work(lambda: self._isolation.remove(action))

    async def start(self, action: StartAttempt) -> AttemptStarted:
        return await _work(lambda: self._start(action))

    async def stop(self, action: StopAttempt) -> AttemptEnded | None:
        return await _work(lambda: stop(self._attempt(action.job, action.attempt), action))

    async def request_checkpoint(self, action: RequestCheckpoint) -> None:
        """By the job's socket, by a file in its checkpoint folder, and by its policy's signal: whichever it has."""
        spec = await _work(lambda: self._running(action))
        reached = 0
        if send := self._senders.get(action.job):
            reached = await send("checkpoint", action.attempt)
        by_file = await _work(lambda: self._ask_by_file(spec, action))
        by_signal = await _work(lambda: self._ask_by_signal(spec, action))
        if not (reached or by_file or by_signal):
            raise Unsupported(f"job {action.job} takes no requests: no open socket, no checkpoint_dir, no signal")

    async def hold(self, action: HoldJob) -> None:
        await _work(lambda: Holds(self._job(action.job)).change(action))

    async def release(self, action: ReleaseJob) -> None:
        await _work(lambda: Holds(self._job(action.job)).change(action))

    async def finish(self, action: FinishJob) -> None:
        """Nothing of a job is left here when its attempt is over."""

    async def holds(self) -> dict[str, str]:
        return await _work(self._holds)

    # --- the work, in a thread --------------------------------------------------------------------------------------

    def _submit(self, spec: JobSpec) -> JobSubmitted:
        check(spec)
        folder = self.state / "jobs" / spec.job
        known = files.load(folder / "spec.json", JobSpec)
        if known is None:
            _check_runnable(spec)
            files.make(folder)
            known = msgspec.structs.replace(spec, at=spec.at or time.time())
            files.save(folder / "spec.json", known)
        elif msgspec.structs.replace(known, at=spec.at) != spec:
            raise Refused(f"{folder}: another job of this name was submitted before; use another name or --attach")
        return submitted(known, self.name)

    def _job(self, job: str) -> Path:
        folder = self.state / "jobs" / job
        if not (folder / "spec.json").exists():
            raise Refused(f"job {job}: there is none in {self.state}")
        return folder

    def _spec(self, job: str) -> JobSpec:
        spec = files.load(self._job(job) / "spec.json", JobSpec)
        assert spec is not None, "looked for a moment ago"
        return spec

    def _attempt(self, job: str, number: int) -> Attempt:
        return Attempt(self._job(job) / "attempts" / str(number))

    def _look(self) -> ClusterSeen:
        if self._seen is None:
            nodes = load_topology(self._cluster / "topology.toml").nodes if self._cluster else (machine.this_machine(),)
            self._seen = ClusterSeen(at=time.time(), source=self.name, nodes=nodes)
        return msgspec.structs.replace(self._seen, at=time.time())

    def _observe(self) -> tuple[AnyEvent, ...]:
        found: list[AnyEvent] = []
        for folder in files.jobs(self.state):
            known = files.attempts(folder)
            for attempt in known[-_REPEATED:] if self._told else known:
                found += self._over.get(attempt.folder) or self._look_at(attempt)
        self._told = True
        return tuple(found)

    def _look_at(self, attempt: Attempt) -> tuple[AnyEvent, ...]:
        close_lost(attempt)
        events = tuple(event for event in (attempt.started_event(), attempt.ended_event()) if event)
        if any(isinstance(event, AttemptEnded) for event in events):
            self._over[attempt.folder] = events
        return events

    def _isolate(self, action: Isolate) -> None:
        nodes = self._nodes()
        if action.node not in nodes:
            raise Refused(f"node {action.node}: there is none; there are {', '.join(nodes)}")
        if action.gpu and action.gpu not in {gpu.uuid for gpu in nodes[action.node].gpus}:
            raise Refused(f"GPU {action.gpu}: node {action.node} has none of that UUID")
        self._isolation.add(action)

    def _start(self, action: StartAttempt) -> AttemptStarted:
        attempt = self._attempt(action.job, action.attempt)
        close_lost(attempt)
        started = attempt.started_event()
        if started is None:
            self._check_start(attempt, action)
            plan = launch.plan(self._spec(action.job), action, self._nodes(), self.state, self._shm)
            self._forget_requests(action)
            launch.write(attempt, plan)
            launch.launch(attempt)
            started = attempt.started_event()
        assert started is not None, "a keeper has written itself down"
        return started

    def _check_start(self, attempt: Attempt, action: StartAttempt) -> None:
        if purpose := Holds(self._job(action.job)).purpose():
            raise Refused(f"job {action.job} is held ({purpose}); release it first")
        for other in files.attempts(self._job(action.job)):
            close_lost(other)
            if other.number != attempt.number and other.keeping and not other.ended:
                raise Refused(f"job {action.job}: attempt {other.number} still runs; stop it first")
        if not action.ranks:
            raise Refused(f"job {action.job}: attempt {action.attempt} has no places to run at")
        nodes, out = self._nodes(), self._isolation.modes()
        for place in action.ranks:
            node = nodes.get(place.node)
            if node is None or not set(place.gpus) <= {gpu.uuid for gpu in node.gpus}:
                raise Refused(f"rank {place.rank}: node {place.node} with {', '.join(place.gpus)} does not exist")
            if taken := [target for target in (place.node, *place.gpus) if target in out]:
                raise Refused(f"rank {place.rank}: {taken[0]} is isolated ({out[taken[0]]})")

    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self._look().nodes}

    def _holds(self) -> dict[str, str]:
        purposes = {folder.name: Holds(folder).purpose() for folder in files.jobs(self.state)}
        return {job: purpose for job, purpose in purposes.items() if purpose}

    def _running(self, action: RequestCheckpoint) -> JobSpec:
        attempt = self._attempt(action.job, action.attempt)
        keeping = attempt.keeping
        if keeping is None or attempt.ended or not processes.alive(keeping.process):
            raise Refused(f"job {action.job}: attempt {action.attempt} does not run")
        return self._spec(action.job)

    def _ask_by_file(self, spec: JobSpec, action: RequestCheckpoint) -> bool:
        if not spec.checkpoint_dir:
            return False
        folder = Path(spec.checkpoint_dir) / ".medevac" / "requests"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{action.attempt}.checkpoint").touch()
        return True

    def _forget_requests(self, action: StartAttempt) -> None:
        """Another run with this checkpoint folder had an attempt of this number too."""
        if folder := self._spec(action.job).checkpoint_dir:
            for path in (Path(folder) / ".medevac" / "requests").glob(f"{action.attempt}.*"):
                path.unlink(missing_ok=True)

    def _ask_by_signal(self, spec: JobSpec, action: RequestCheckpoint) -> bool:
        if not spec.policy.signal:
            return False
        attempt = self._attempt(action.job, action.attempt)
        if plan := attempt.plan:
            for process in Family(attempt, plan).ranks():
                processes.send(process, _signal(spec))
        return True


def _check_runnable(spec: JobSpec) -> None:
    if spec.policy.signal:
        _signal(spec)
    if spec.cwd and not Path(spec.cwd).is_dir():
        raise Refused(f"job {spec.job}: folder {spec.cwd} does not exist")
    program = spec.command[0]
    if "/" in program:
        found = os.access(Path(spec.cwd) / program, os.X_OK)
    else:
        found = shutil.which(program, path=spec.env.get("PATH")) is not None
    if not found:
        raise Refused(f"job {spec.job}: command {program} does not exist or may not be executed")


def _signal(spec: JobSpec) -> signal.Signals:
    name = (spec.policy.signal or "").upper()
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError as problem:
        raise Refused(f"job {spec.job}: policy key signal: {name!r} is no signal; write USR1, for example") from problem


async def _work(call: Callable[[], T]) -> T:
    return await asyncio.to_thread(_translated, call)


def _translated(call: Callable[[], T]) -> T:
    """What the disk says, as the ports' errors."""
    try:
        return call()
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        raise Unavailable(f"{where}{problem.strerror or problem}") from problem
