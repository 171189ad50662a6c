"""The local scheduler's state: small JSON files, each replaced whole and durable, one folder per job and attempt.

isolated.json                         GPUs and nodes that are out, and whose action it was
jobs/<job>/spec.json                  the job as submitted
jobs/<job>/hold.json                  our hold on it
jobs/<job>/savers/<pid>               its checkpoint savers, which clean-up spares
jobs/<job>/attempts/<n>/plan.json     written first: what is to run, whole
/keeper.json   the keeper and the ranks it started
/stop.json     somebody wants it ended
/exits.jsonl   ranks that have ended, in order of time
/ended.json    written last
/rank<k>.log   what rank k printed
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from medevac.core.events import AttemptEnded, AttemptStarted, RankExit, RankPlace
from medevac.ports.errors import BadReply

SOURCE = "local"
_LONGEST_SOCKET = 100  # sun_path holds 108 bytes; some are left for a temporary name beside it
T = TypeVar("T")


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape of what is stored here."""


class ProcessId(Value, frozen=True, kw_only=True):
    """A process that cannot be taken for a later one with its pid: start time in clock ticks since `boot`."""

    pid: int
    started: int
    boot: str = ""


class PlannedRank(Value, frozen=True, kw_only=True):
    """One rank's place and the variables that its environment gets."""

    place: RankPlace
    env: dict[str, str] = {}


class Plan(Value, frozen=True, kw_only=True):
    """An attempt, whole: the keeper needs nothing else. `shm` is where shared memory is searched for leftovers."""

    job: str
    attempt: int
    action: str
    at: float
    command: tuple[str, ...]
    cwd: str
    state: str
    ranks: tuple[PlannedRank, ...]
    resume_from: int | None = None
    shm: str = "/dev/shm"  # noqa: S108 - Linux has it there
    warm: bool = False
    warm_imports: tuple[str, ...] = ()


class StartedRank(Value, frozen=True, kw_only=True):
    """A rank's process, which leads a process group of its own."""

    rank: int
    process: ProcessId


class Keeping(Value, frozen=True, kw_only=True):
    """The keeper at work; `shm` are the segments (name and inode) that were there before its ranks. `warm` is the
    process that waits to fork the next attempt's ranks: no part of this one.
    """

    process: ProcessId
    at: float
    ranks: tuple[StartedRank, ...] = ()
    shm: tuple[str, ...] = ()
    warm: ProcessId | None = None


class Stop(Value, frozen=True, kw_only=True):
    """An order to end the attempt."""

    action: str
    at: float


class Ended(Value, frozen=True, kw_only=True):
    """How the attempt ended."""

    at: float
    code: int
    exits: tuple[RankExit, ...] = ()
    why: str = ""


class Attempt:
    """The files of one attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = int(folder.name)
        self.job = folder.parent.parent.name

    @property
    def plan(self) -> Plan | None:
        return load(self.folder / "plan.json", Plan)

    @property
    def keeping(self) -> Keeping | None:
        return load(self.folder / "keeper.json", Keeping)

    @property
    def stop(self) -> Stop | None:
        return load(self.folder / "stop.json", Stop)

    @property
    def ended(self) -> Ended | None:
        return load(self.folder / "ended.json", Ended)

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ranks that have ended so far; a torn last line (power lost) is left out."""
        try:
            lines = (self.folder / "exits.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return ()
        return tuple(msgspec.json.decode(line, type=RankExit) for line in lines if line.endswith(b"\n"))

    def log(self, rank: int) -> Path:
        """Where rank `rank` prints to."""
        return self.folder / f"rank{rank}.log"

    def save(self, value: Plan | Keeping | Stop | Ended) -> None:
        """Replace this attempt's file of that kind."""
        names = {Plan: "plan.json", Keeping: "keeper.json", Stop: "stop.json", Ended: "ended.json"}
        save(self.folder / names[type(value)], value)

    @contextlib.contextmanager
    def lock(self, *, wait: bool) -> Iterator[bool]:
        """Holds the attempt's lock: a living keeper has it. False where somebody else holds it and we do not wait."""
        with locked(self.folder / "keeper.lock", wait=wait) as held:
            yield held

    def started_event(self) -> AttemptStarted | None:
        """None before the keeper is at work."""
        plan, keeping, ended = self.plan, self.keeping, self.ended
        if plan is None or (keeping is None and ended is None):
            return None
        return AttemptStarted(
            at=keeping.at if keeping else plan.at,
            id=f"{self.job}/{self.number}/started",
            source=SOURCE,
            job=self.job,
            attempt=self.number,
            ranks=tuple(rank.place for rank in plan.ranks),
            resume_from=plan.resume_from,
        )

    def ended_event(self) -> AttemptEnded | None:
        """None while it runs."""
        ended = self.ended
        if ended is None:
            return None
        return AttemptEnded(
            at=ended.at,
            id=f"{self.job}/{self.number}/ended",
            source=SOURCE,
            job=self.job,
            attempt=self.number,
            code=ended.code,
            exits=ended.exits,
            why=ended.why,
        )


def attempts(job_folder: Path) -> list[Attempt]:
    """All attempts of a job, in order."""
    found = [path for path in _listed(job_folder / "attempts") if path.name.isdecimal()]
    return [Attempt(path) for path in sorted(found, key=lambda path: int(path.name))]


def jobs(state: Path) -> list[Path]:
    """The folders of all jobs with a spec."""
    return sorted(path for path in _listed(state / "jobs") if (path / "spec.json").exists())


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def load(path: Path, kind: type[T]) -> T | None:
    """The value in a file, None where there is no file. Raises `BadReply` naming it for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadReply(f"{path}: {problem}; move the file away to go on without it") from problem


def save(path: Path, value: msgspec.Struct) -> None:
    """Replace a file; it is on disk when this returns. Only the owner may read it: an environment holds secrets."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(msgspec.json.encode(value) + b"\n")
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Make what a folder lists durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make(folder: Path) -> None:
    """A folder that only its owner may read, with its parents."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Holds an flock on a file that is made for it; the kernel lets go when the holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def socket_path(state: Path, job: str) -> Path:
    """Where a job's in-job socket is: in its folder, or a short path where that is too long for a socket address."""
    path = state.absolute() / "jobs" / job / "sock"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return path
    name = hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest()
    return Path(tempfile.gettempdir()) / f"medevac-{os.getuid()}" / f"{name}.sock"
