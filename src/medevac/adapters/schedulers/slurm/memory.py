"""What the adapter knows that Slurm forgets: how earlier runs of a job began and ended, and which orders are done.

One file a job and one for the nodes, below the controller's state folder; each is replaced as a whole. Slurm itself
keeps only a job's present run, and none of it where there is no accounting.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from medevac.adapters.schedulers.slurm.values import Value
from medevac.core.events import AttemptEnded, AttemptStarted, JobSubmitted, OrderGiven
from medevac.ports.errors import Unavailable

REMEMBERED = 200
T = TypeVar("T", bound=Value)


class Run(Value, frozen=True, kw_only=True):
    """One run of the job: Slurm's restart count and start time then, what was told of it, whether we ended it."""

    restarts: int
    start: str = ""
    started: AttemptStarted
    ended: AttemptEnded | None = None
    stopping: bool = False


class JobMemory(Value, frozen=True, kw_only=True):
    """`slurm` is what commands take for the job. `resume`: attempt -> step that it was told to load. `excluded`: nodes
    that we put into ExcNodeList, and when.
    """

    name: str
    slurm: str
    submit: str = ""
    submitted: JobSubmitted | None = None
    order: OrderGiven | None = None
    runs: tuple[Run, ...] = ()
    resume: dict[int, int | None] = {}
    excluded: dict[str, float] = {}
    done: tuple[str, ...] = ()

    def run(self, attempt: int) -> Run | None:
        return next((run for run in self.runs if run.started.attempt == attempt), None)

    def with_run(self, run: Run) -> JobMemory:
        """A new run, or a known one with more known of it."""
        others = tuple(one for one in self.runs if one.started.attempt != run.started.attempt)
        return msgspec.structs.replace(self, runs=(*others, run))

    def with_done(self, action: str) -> JobMemory:
        return msgspec.structs.replace(self, done=(*self.done, action)[-REMEMBERED:])


class NodeMemory(Value, frozen=True, kw_only=True):
    """Orders about nodes that are done, and when this memory began. `reboots`: order -> the node's boot time before."""

    since: float
    done: tuple[str, ...] = ()
    reboots: dict[str, str] = {}


class Memory:
    """Read once, then written through. Raises `Unavailable` naming a file that cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jobs: dict[str, JobMemory] | None = None
        self._nodes: NodeMemory | None = None

    def jobs(self) -> dict[str, JobMemory]:
        """By the job's name in Medevac."""
        if self._jobs is None:
            files = sorted((self.folder / "jobs").glob("*.json"))
            found = (_load(path, JobMemory) for path in files)
            self._jobs = {job.name: job for job in found if job is not None}
        return self._jobs

    def save(self, job: JobMemory) -> None:
        jobs = self.jobs()
        if jobs.get(job.name) != job:
            _save(self.folder / "jobs" / f"{job.name}.json", job)
            jobs[job.name] = job

    def forget(self, name: str) -> None:
        """A job that is long over and that Slurm does not know any more."""
        if self.jobs().pop(name, None):
            (self.folder / "jobs" / f"{name}.json").unlink(missing_ok=True)

    def nodes(self) -> NodeMemory:
        if self._nodes is None:
            self._nodes = _load(self.folder / "nodes.json", NodeMemory)
        if self._nodes is None:
            self._nodes = NodeMemory(since=time.time())
            _save(self.folder / "nodes.json", self._nodes)
        return self._nodes

    def node_order_done(self, action: str) -> None:
        now = self.nodes()
        self._nodes = msgspec.structs.replace(now, done=(*now.done, action)[-REMEMBERED:])
        _save(self.folder / "nodes.json", self._nodes)

    def reboot_asked(self, action: str, booted: str) -> None:
        """Kept before a reboot is ordered: the boot time that the node has still."""
        now = self.nodes()
        last = dict([*now.reboots.items(), (action, booted)][-REMEMBERED:])
        self._nodes = msgspec.structs.replace(now, reboots=last)
        _save(self.folder / "nodes.json", self._nodes)


def _load(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as problem:
        raise Unavailable(f"{path}: cannot be read: {problem}; move it away to begin anew") from problem


def _save(path: Path, value: Value) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        with staged.open("wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as problem:
        raise Unavailable(f"{path}: cannot be written: {problem.strerror or problem}") from problem
