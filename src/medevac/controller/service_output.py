"""What a Slurm job prints: one file for all of its ranks (with `--error` two) and, where the site appends, for all of
its attempts.

A line is the attempt's that ran when it was printed. Where an attempt ended in the file is kept in the state folder,
so that what an old attempt printed never counts as a new one's progress.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from medevac.adapters.sources.output import POLL_SECONDS, Parser, Printed
from medevac.adapters.sources.tail import Line, Tail
from medevac.controller.output import last_bytes, told
from medevac.core.events import AnyEvent, AttemptEnded, AttemptStarted, OutputRead
from medevac.decode.joblog_case import LogRead, read_log
from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable

Stream: TypeAlias = Literal["output", "errors"]
STREAMS: tuple[Stream, ...] = ("output", "errors")


def ends_of(job: str, stream: Stream) -> str:
    """Under which name the ends of a stream are kept."""
    return job if stream == "output" else f"{job}.{stream}"


class End(msgspec.Struct, frozen=True, kw_only=True):
    """`attempt` ended when the file (by its inode) was `size` bytes long."""

    attempt: int
    inode: int
    size: int


class Ends:
    """Where the last ended attempt of each job ends in its output. A lost file costs a line's attempt, no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, job: str) -> End | None:
        try:
            return msgspec.json.decode((self._folder / f"{job}.json").read_bytes(), type=End)
        except (OSError, msgspec.DecodeError):
            return None

    def save(self, job: str, end: End) -> None:
        """Raises `Unavailable`."""
        path = self._folder / f"{job}.json"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            staged = path.with_name(f".{path.name}.{os.getpid()}")
            staged.write_bytes(msgspec.json.encode(end))
            staged.replace(path)
        except OSError as problem:
            raise Unavailable(f"{path}: cannot be written: {problem.strerror}") from problem

    def forget(self, job: str) -> None:
        (self._folder / f"{job}.json").unlink(missing_ok=True)


class SlurmOutput:
    """Follows a job's output (`ports.source.Source`). `path` and `attempt` say what they are now; None and 0: not yet.

    The file may be on a file system that hangs, so it is read in a thread.
    """

    def __init__(
        self,
        job: str,
        path: Callable[[], Path | None],
        attempt: Callable[[], int],
        ends: Ends,
        parse: Parser,
        clock: Clock,
        stream: Stream = "output",
    ) -> None:
        self.name = f"{job}/{stream}"
        self._job = job
        self._ended = ends_of(job, stream)
        self._path = path
        self._attempt = attempt
        self._ends = ends
        self._parse = parse
        self._clock = clock

    async def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        tail: Tail | None = None
        read_to = 0
        try:
            while True:
                path = self._path()
                if path and (tail is None or tail.path != path):
                    tail = Tail(path, cursor if tail is None else "")
                lines = await asyncio.to_thread(tail.read) if tail else []
                for line in lines:
                    start = _offset(line.key)
                    if start < read_to:  # it was truncated: a requeue does that, where the site does not append
                        self._ends.forget(self._ended)
                    read_to = _offset(line.cursor)
                    if event := self._event(line, start):
                        yield event, line.cursor
                if not lines:
                    await self._clock.sleep(POLL_SECONDS)
        except OSError as problem:
            raise Unavailable(f"{problem.filename or self._path()}: {problem.strerror}") from problem
        finally:
            if tail:
                tail.close()

    def _event(self, line: Line, start: int) -> AnyEvent | None:
        text, now = line.text.decode("utf-8", "replace").rstrip("\r"), self._clock.now()
        attempt = self._attempt()
        end = self._ends.of(self._ended)
        if end and end.inode == _inode(line.key) and start < end.size:
            attempt = min(attempt, end.attempt)
        event = self._parse(Printed(self._job, attempt, 0, text, now)) if attempt else None
        if event is None:
            return None
        key = f"{self.name}/{attempt}:{line.key}"
        return msgspec.structs.replace(event, id=key, source=self.name, seen_at=now)


def read_ended(
    paths: Sequence[Path], started: AttemptStarted, ended: AttemptEnded | None, ends: Ends, regex: str | None
) -> OutputRead:
    """What an ended attempt printed last, through all signatures; remembers where it ends. `paths`: of its output, and
    of its errors where those have a file of their own. Raises `Unavailable`.
    """
    job, number = started.job, started.attempt
    streams = zip(STREAMS, paths, strict=False)
    logs = [log for stream, path in streams if (log := _read(path, ends_of(job, stream), number, ends, regex))]
    nodes = {place.rank: place.node for place in started.ranks} if logs else {}
    return told([(None, log) for log in logs], job, number, nodes, ended.at if ended else 0.0)


def _read(path: Path, key: str, number: int, ends: Ends, regex: str | None) -> LogRead | None:
    try:
        status = path.stat()
    except OSError:
        return None
    before, start = ends.of(key), 0
    if before and before.inode == status.st_ino and before.attempt < number and before.size <= status.st_size:
        start = before.size
    log = read_log(path.name, last_bytes(path, start), regex=regex)
    if before is None or before.attempt < number:
        ends.save(key, End(attempt=number, inode=status.st_ino, size=status.st_size))
    return log


def _inode(key: str) -> int:
    """Of a line's key: `<inode>-<checksum>:<offset>`."""
    digits = key.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _offset(key: str) -> int:
    digits = key.rpartition(":")[2]
    return int(digits) if digits.isdecimal() else 0
