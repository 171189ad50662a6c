"""`medevac controller`: the loop as a service beside Slurm, until it is told to end.

It follows the scheduler, the nodes' kernel logs and the jobs' output and in-job files, all on file systems that this
machine reads; keeps its store and its lease in the state folder; and acts, or in monitor mode only records.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import structlog

from medevac.adapters.checkpoints import FolderCheckpoints
from medevac.adapters.clock import SystemClock
from medevac.adapters.injob import Hub
from medevac.adapters.lease import Lease
from medevac.adapters.notify import CommandNotifier, LogNotifier, SeveralNotifiers
from medevac.adapters.schedulers.local.files import socket_path
from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler
from medevac.adapters.schedulers.slurm.paths import errors, output
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.adapters.sources.kmsg import POLL_SECONDS, KernelLog
from medevac.adapters.sources.node_folder import NodeFolder
from medevac.adapters.store.sqlite import SqliteStore
from medevac.adapters.topology import load_topology
from medevac.controller.config import Config
from medevac.controller.examine import examine_files
from medevac.controller.output import output_parser
from medevac.controller.patience import patiently
from medevac.controller.runtime import Runtime
from medevac.controller.second_opinion import second_opinions
from medevac.controller.service_output import STREAMS, Ends, SlurmOutput, ends_of, read_ended
from medevac.controller.settings import LEASE, STORE, act_by
from medevac.core.actions import ExamineAttempt
from medevac.core.events import AnyEvent, AttemptExamined, JobPolicy, JobSubmitted, OutputRead
from medevac.ports.errors import FencedOff
from medevac.ports.notifier import Notifier
from medevac.ports.source import Source
from medevac.testing import kill

OTHER_ACTS = 75
"""EX_TEMPFAIL of sysexits.h: another controller acts."""

LEASE_TRY_S = 2.0
THREADS = 64
READS_A_SECOND = 2000.0
"""Kernel logs are looked at no more often than that, all together."""

COUNTED_S = 60.0
"""Counters that did not change are told again after that."""

READ_WITHIN_S = 1.0
PAGES = "pages.jsonl"
log = structlog.get_logger(__name__)


class Recent:
    """A source without what happened before `since`: a fault that was there before us is history."""

    def __init__(self, source: Source, since: float) -> None:
        self.name = source.name
        self._source = source
        self._since = since

    async def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        async for event, place in self._source.follow(cursor):
            if event.at >= self._since:
                yield event, place


class Speaks:
    """What a job's ranks say through files, and whether they ever said anything.

    Files are read twice a second, several steps at a time. A step that was written within that time counts as seen
    when the rank's own clock says; a clock that is further off is not believed.
    """

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.heard = False
        self._source = source

    async def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        self.heard = self.heard or bool(cursor)
        async for event, place in self._source.follow(cursor):
            self.heard = True
            yield msgspec.structs.replace(event, seen_at=_seen_at(event)), place


def _seen_at(event: AnyEvent) -> float:
    return event.at if 0.0 <= event.seen_at - event.at <= READ_WITHIN_S else event.seen_at


class SlurmPorts:
    """A Slurm cluster (`runtime.Ports`)."""

    def __init__(self, state: Path, config: Config, store: SqliteStore, lease: Lease) -> None:
        self.state = state
        self.config = config
        self.lease = lease
        self.clock = SystemClock()
        site = config.slurm
        commands = Commands(mode=config.mode, prefix=site.prefix, deadline_s=site.deadline_s)
        self.slurm = SlurmScheduler(commands, state, site)
        self.store = kill.armed("store", store, state)
        self.scheduler = kill.armed("scheduler", self.slurm, state)
        self.checkpoints = kill.armed("checkpoints", FolderCheckpoints(writer=store.identity), state)
        self.notifier = kill.armed("notifier", _notifier(config, state), state)
        self._ends = Ends(state / "slurm" / "output")
        self._paths: dict[str, tuple[Path, ...]] = {}
        self._numbers: dict[str, str] = {}
        self._looked: tuple[SlurmJob, ...] | None = None

    async def look_around(self) -> None:
        """Learn which nodes there are; waits for a slurmctld that does not answer."""
        await patiently("Slurm", self.slurm.cluster, self.clock)

    def fence(self) -> None:
        self.lease.check()

    def sources(self) -> Sequence[Source]:
        since = self.slurm.memory.nodes().since - self.config.look_back_s
        logs = self._kernel_logs()
        pause = max(POLL_SECONDS, len(logs) / READS_A_SECOND)
        spoken = [KernelLog(path, node, clock=self.clock, poll_s=pause) for node, path in sorted(logs.items())]
        return [Recent(source, since) for source in (*spoken, *self._node_folders())]

    def _node_folders(self) -> Sequence[Source]:
        pattern = self.config.node_folder
        if not pattern:
            return ()
        folders = [(node, Path(pattern.replace("{node}", node))) for node in self.slurm.look.names]
        return [NodeFolder(folder, node, period_s=COUNTED_S, clock=self.clock) for node, folder in folders]

    def _kernel_logs(self) -> dict[str, Path]:
        """By node: what the topology says stands over the configured pattern."""
        pattern, topology = self.config.kernel_log, self.config.slurm.topology
        found = {node: Path(pattern.replace("{node}", node)) for node in self.slurm.look.names} if pattern else {}
        return found | (load_topology(Path(topology)).kernel_logs if topology else {})

    def job_sources(self, job: str) -> Sequence[Source]:
        policy = self._policy(job)
        folder = Path(policy.checkpoint_dir) if policy.checkpoint_dir else None
        hub = Speaks(Hub(socket_path(self.state, job), job=job, folder=folder, clock=self.clock))
        parse = output_parser(policy.progress_regex, lambda: hub.heard, own_files=False)
        printed = [
            SlurmOutput(job, self._path(job, n), lambda: self._attempt(job), self._ends, parse, self.clock, stream)
            for n, stream in enumerate(STREAMS)
        ]
        return (hub, *printed)

    def _path(self, job: str, stream: int) -> Callable[[], Path | None]:
        """Where a stream goes, as soon as that is known and it has a file of its own."""
        return lambda: next(iter(self._paths.get(job, ())[stream : stream + 1]), None)

    async def submissions(self, known: Collection[str]) -> tuple[JobSubmitted, ...]:
        """Jobs come with what the scheduler shows; here their output files are found, which Slurm forgets."""
        if (jobs := self.slurm.look.latest) is self._looked:
            return ()
        self._looked = jobs
        for job in jobs:
            name = self.slurm.name_of(job)
            if name in known and job.nodes:
                self._paths[name] = output_paths(job, self._policy(name))
                self._numbers[name] = job.number
        return ()

    async def output(self, job: str, attempt: int) -> tuple[OutputRead, ...]:
        memory = self.slurm.memory.jobs().get(job)
        run = memory.run(attempt) if memory else None
        paths = self._paths.get(job)
        if run is None or paths is None:
            return ()
        regex = self._policy(job).progress_regex
        return (await asyncio.to_thread(read_ended, paths, run.started, run.ended, self._ends, regex),)

    async def examine(self, look: ExamineAttempt) -> tuple[AttemptExamined, ...]:
        memory, policy = self.slurm.memory.jobs().get(look.job), self._policy(look.job)
        run = memory.run(look.attempt) if memory else None
        places, since = (run.started.ranks, run.started.at) if run else ((), 0.0)
        states = {job.state for job in self.slurm.look.latest if self.slurm.name_of(job) == look.job}
        return await examine_files(
            look,
            policy.flight_recorder,
            policy.checkpoint_dir,
            places,
            since,
            self.clock.now(),
            suspended=bool(states & {"SUSPENDED", "STOPPED"}),
        )

    async def over(self, job: str) -> None:
        """What the next attempt was to load is nobody's any more: Slurm gives numbers again."""
        self._paths.pop(job, None)
        number, folder = self._numbers.pop(job, ""), self.config.slurm.pointers
        if number and folder and self.config.mode == "act":
            with contextlib.suppress(OSError):
                (Path(folder) / number).unlink(missing_ok=True)
        for stream in STREAMS:
            self._ends.forget(ends_of(job, stream))

    def _policy(self, job: str) -> JobPolicy:
        memory = self.slurm.memory.jobs().get(job)
        return memory.submitted.policy if memory and memory.submitted else JobPolicy()

    def _attempt(self, job: str) -> int:
        memory = self.slurm.memory.jobs().get(job)
        return memory.runs[-1].started.attempt if memory and memory.runs else 0


def output_paths(job: SlurmJob, policy: JobPolicy) -> tuple[Path, ...]:
    """Where the job prints: what its policy names, else Slurm's StdOut; then its StdErr where that is another file."""
    job = msgspec.structs.replace(job, stdout=policy.output) if policy.output else job
    return tuple(Path(path) for path in (output(job), errors(job)) if path)


def _notifier(config: Config, state: Path) -> Notifier:
    logged = LogNotifier(state / PAGES)
    if not config.notify.command:
        return logged
    return SeveralNotifiers((logged, CommandNotifier(config.notify.command, timeout_s=config.notify.timeout_s)))


async def serve(state: Path, config: Config, base: Path) -> int:
    """Act until SIGTERM or SIGINT; the exit code: 0 ended in order, 75 another controller took over.

    `base` is the folder of the configuration file. Raises `ConfigError`, `CatalogError`.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    work = asyncio.create_task(_serve(state, config, base))
    for told_to_end in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(told_to_end, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        log.info("ends: it was told to")
        return 0


async def _serve(state: Path, config: Config, base: Path) -> int:
    policy, settings = config.load_policy(base), config.settings(base)
    _many_files()
    lease = await _lease(state)
    code, store = 0, None
    try:
        act_by(state, settings)
        store = SqliteStore.open(state / STORE)
        ports = SlurmPorts(state, config, store, lease)
        await ports.look_around()
        runtime = Runtime(ports, policy, endless=True, look_around_s=config.slurm.look_around_s)
        await runtime.restore()
        ports.clock.at_least(runtime.loop.view.now)
        log.info("begins", mode=config.mode, policy=policy.name, state=str(state))
        await runtime.run(
            lease.keep(ports.clock), second_opinions(config.attribution, runtime.loop, runtime.intake, ports.clock)
        )
    except* FencedOff as lost:
        log.warning("another controller acts now, this one ends", problem=str(lost.exceptions[0]))
        code = OTHER_ACTS
    finally:
        if store:
            await store.close()
        lease.release()
    return code


async def _lease(state: Path) -> Lease:
    """Waits while another controller holds it: a second one stands by."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lease, said = Lease(state / LEASE), False
    while True:
        try:
            lease.take()
        except FencedOff as problem:
            if not said:
                log.info("stands by", problem=str(problem))
            said = True
            await asyncio.sleep(LEASE_TRY_S)
        else:
            return lease


def _many_files() -> None:
    """A file of each node is open: as many as the system lets us."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
