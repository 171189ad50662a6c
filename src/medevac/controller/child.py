"""The controller process of `medevac run`: takes the lease, looks after every job of its state folder, then ends.

    python -m medevac.controller.child <state folder> <job>

It also sees to it that each job has a parent process (`medevac run`), which in turn starts the controller anew.
Exit codes: 0 nothing is left to do, 2 wrong configuration, 75 another controller acts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from medevac.adapters.attribution import Service, check
from medevac.adapters.checkpoints import FolderCheckpoints
from medevac.adapters.clock import SystemClock
from medevac.adapters.injob import Hub
from medevac.adapters.lease import Lease, is_over, read
from medevac.adapters.notify import LogNotifier
from medevac.adapters.schedulers.local import files, machine
from medevac.adapters.schedulers.local.scheduler import LocalScheduler
from medevac.adapters.schedulers.spec import JobSpec, submitted
from medevac.adapters.sources.kmsg import KernelLog, kernel_log
from medevac.adapters.sources.node_folder import NodeFolder
from medevac.adapters.sources.nvml import NvmlSource
from medevac.adapters.sources.output import JobOutput
from medevac.adapters.store.sqlite import SqliteStore
from medevac.adapters.topology import load_topology
from medevac.catalog.schema import CatalogError
from medevac.controller.examine import examine
from medevac.controller.loop import Loop
from medevac.controller.output import output_parser, read_output
from medevac.controller.runtime import RESTING, Runtime
from medevac.controller.second_opinion import second_opinions
from medevac.controller.settings import LEASE, STORE, Run, Settings, act_by
from medevac.core.actions import ExamineAttempt
from medevac.core.events import AttemptExamined, JobSubmitted, OutputRead
from medevac.ports.errors import BadReply, ConfigError, FencedOff, Refused, Unavailable
from medevac.ports.source import Source
from medevac.testing import kill

OTHER_ACTS = 75
"""EX_TEMPFAIL of sysexits.h."""

LOOK_S = 0.5
PARENT_STARTS_S = 20.0
"""How long a new parent may take to say that it is there."""

THREADS = 32
ATTRIBUTION = "MEDEVAC_ATTRIBUTION_URL"
"""Names the external attribution service, if there is one (docs/diagnosis.md)."""

KERNEL = Path("/dev/kmsg")
log = structlog.get_logger(__name__)


class LocalPorts:
    """This machine, or a simulated cluster on it."""

    def __init__(self, state: Path, settings: Settings, store: SqliteStore, lease: Lease) -> None:
        self.state = state
        self.lease = lease
        self.clock = SystemClock()
        self.local = LocalScheduler(state, Path(settings.cluster) if settings.cluster else None)
        self.store = kill.armed("store", store, state)
        self.scheduler = kill.armed("scheduler", self.local, state)
        self.checkpoints = kill.armed("checkpoints", FolderCheckpoints(writer=store.identity), state)
        self.notifier = kill.armed("notifier", LogNotifier(state / "pages.jsonl"), state)
        self._cluster = settings.cluster
        self._gpus: dict[str, NodeFolder | NvmlSource] = {}

    def fence(self) -> None:
        self.lease.check()

    def sources(self) -> Sequence[Source]:
        if self._cluster:
            folder = Path(self._cluster)
            topology = load_topology(folder / "topology.toml")
            logs = [KernelLog(path, name, clock=self.clock) for name, path in topology.kernel_logs.items()]
            folders = [NodeFolder(folder / node.name, node.name, clock=self.clock) for node in topology.nodes]
            return (*logs, *map(self._shows_loads, folders))
        node = machine.node_name()
        readable = KERNEL.exists() and os.access(KERNEL, os.R_OK)
        kernel = (kernel_log(KERNEL, node, clock=self.clock),) if readable else ()
        return (*kernel, self._shows_loads(NvmlSource(node, clock=self.clock)))

    def _shows_loads(self, source: NodeFolder | NvmlSource) -> NodeFolder | NvmlSource:
        """The first of that name: it is the one that is followed."""
        return self._gpus.setdefault(source.name, source)

    def job_sources(self, job: str) -> Sequence[Source]:
        spec = files.load(self.state / "jobs" / job / "spec.json", JobSpec)
        folder = Path(spec.checkpoint_dir) if spec and spec.checkpoint_dir else None
        hub = Hub(files.socket_path(self.state, job), job=job, folder=folder, clock=self.clock)
        self.local.attach(job, hub.send)
        regex = spec.policy.progress_regex if spec else None
        printed = JobOutput(
            self.state / "jobs" / job,
            output_parser(regex, lambda: hub.connected > 0, own_files=spec is None or spec.gpus_per_rank > 0),
            clock=self.clock,
        )
        return (hub, printed)

    async def output(self, job: str, attempt: int) -> tuple[OutputRead, ...]:
        folder = self.state / "jobs" / job
        spec = files.load(folder / "spec.json", JobSpec)
        regex = spec.policy.progress_regex if spec else None
        return (await read_output(files.Attempt(folder / "attempts" / str(attempt)), job, attempt, regex),)

    async def examine(self, look: ExamineAttempt) -> tuple[AttemptExamined, ...]:
        folder = self.state / "jobs" / look.job
        spec = files.load(folder / "spec.json", JobSpec)
        dumps = spec.policy.flight_recorder if spec else None
        loads = {gpu: load for source in self._gpus.values() for gpu, load in source.loads().items()}
        attempt = files.Attempt(folder / "attempts" / str(look.attempt))
        return await examine(look, attempt, dumps, self.clock.now(), loads)

    async def submissions(self, known: Collection[str]) -> tuple[JobSubmitted, ...]:
        found = []
        for folder in files.jobs(self.state):
            if folder.name in known:
                continue
            try:
                found.append(submitted(await self.local.spec(folder.name), self.local.name))
            except (Refused, BadReply, Unavailable) as problem:
                log.warning("a job cannot be read", job=folder.name, problem=str(problem))
        return tuple(found)

    async def over(self, job: str) -> None:
        await self.local.clear_savers(job)


async def tend_parents(state: Path, loop: Loop) -> None:
    """Start a new parent, detached, for each job that is to go on and has none."""
    started: dict[str, float] = {}
    while True:
        for name, job in loop.view.jobs.items():
            held = read(Run(state, name).supervisor)
            gone = is_over(held, time.time())
            late = time.monotonic() > started.get(name, 0.0) + PARENT_STARTS_S
            if job.state not in RESTING and gone and (name not in started or late):
                log.warning("the parent process is gone, a new one takes its place", job=name)
                started[name] = time.monotonic()
                start_parent(state, name)
            elif not gone:
                started.pop(name, None)
        await asyncio.sleep(LOOK_S)


def start_parent(state: Path, job: str) -> None:
    """`medevac run --attach JOB`, in a session of its own, its words in the job's folder."""
    with (Run(state, job).folder / "supervisor.log").open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "medevac.cli.main", "run", "--state-dir", str(state), "--attach", job],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


async def serve(state: Path, job: str) -> int:
    """Act for every job of the state folder until nothing is left to do; the exit code."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    settings = Run(state, job).settings()
    policy = settings.load()
    attribution = check(Service(url=os.environ.get(ATTRIBUTION, "")))
    lease = Lease(state / LEASE)
    try:
        lease.take()
    except FencedOff as problem:
        log.info("another controller acts", problem=str(problem))
        return OTHER_ACTS
    act_by(state, settings)
    code, store = 0, SqliteStore.open(state / STORE)
    try:
        ports = LocalPorts(state, settings, store, lease)
        runtime = Runtime(ports, policy)
        await runtime.restore()
        ports.clock.at_least(runtime.loop.view.now)
        await runtime.run(
            lease.keep(ports.clock),
            tend_parents(state, runtime.loop),
            second_opinions(attribution, runtime.loop, runtime.intake, ports.clock),
        )
        lease.release()
    except* FencedOff as lost:
        log.warning("another controller acts now, this one ends", problem=str(lost.exceptions[0]))
        code = OTHER_ACTS
    finally:
        await store.close()
    return code


def main() -> int:
    """See the module."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    state, job = Path(sys.argv[1]), sys.argv[2]
    try:
        return asyncio.run(serve(state, job))
    except (ConfigError, CatalogError) as problem:
        log.error("cannot begin", problem=str(problem))  # noqa: TRY400 - one line that the user can mend
        return 2


if __name__ == "__main__":
    sys.exit(main())
