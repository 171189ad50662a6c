"""The controller's end of the in-job protocol (docs/in-job-protocol.md): what ranks report, and requests to them.

Ranks speak over a Unix SOCK_SEQPACKET socket, one JSON event a packet; those on other machines append lines to files
of the checkpoint folder. A job can send anything: what is no event of this job is counted in `Hub.bad` and left out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from medevac.adapters.clock import SystemClock
from medevac.adapters.sources.tail import Tail
from medevac.core.events import CorruptionSeen, ResumedFrom, StepReported
from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable

MAX_PACKET = 64 * 1024
_BACKLOG = 4096  # ranks of one machine that connect at once
_WAITING = 10_000  # events taken in and not yet passed on; beyond them ranks drop their own
_AT_ONCE = 64  # packets of one rank before the others have their turn
_FILE_POLL_SECONDS = 0.5
_KEPT = ("checkpoint", "stop")  # requests that a rank of the attempt gets even if it connects later

Reported: TypeAlias = StepReported | ResumedFrom | CorruptionSeen
_DECODER: msgspec.json.Decoder[Reported] = msgspec.json.Decoder(Reported)


class _Rank:
    """What is known of a connection."""

    def __init__(self) -> None:
        self.attempt: int | None = None
        self.told: set[str] = set()


class Hub:
    """One job's ranks (`ports.source.Source`). `folder` is the job's checkpoint folder, for ranks without a socket.

    `bad` counts packets and lines that were no event of this job.
    """

    def __init__(
        self, socket_path: Path, *, job: str = "", folder: Path | None = None, clock: Clock | None = None
    ) -> None:
        self.name = f"{job or socket_path.parent.name}/injob"
        self.bad = 0
        self._path = socket_path
        self._job = job
        self._files = folder / ".medevac" if folder else None
        self._clock = clock or SystemClock()
        self._listener: socket.socket | None = None
        self._ranks: dict[socket.socket, _Rank] = {}
        self._waiting: deque[Reported] = deque()
        self._written: deque[tuple[Reported, str, str]] = deque()
        self._paused: set[socket.socket] = set()
        self._news = asyncio.Event()
        self._asked: dict[int, set[str]] = {}
        self._tails: dict[str, Tail] = {}
        self._places: dict[str, str] = {}

    @property
    def connected(self) -> int:
        """Ranks with an open connection."""
        return len(self._ranks)

    async def follow(self, cursor: str) -> AsyncIterator[tuple[Reported, str]]:
        """Events as they come; the cursor is JSON, the places in the files. Raises `Unavailable` when the socket
        cannot be made.
        """
        self._places = msgspec.json.decode(cursor, type=dict[str, str]) if cursor else {}
        self.open()
        reading = asyncio.create_task(self._read_files())
        try:
            while True:
                while self._waiting:
                    yield self._waiting.popleft(), self._cursor()
                self._resume_reading()
                while self._written:
                    event, name, place = self._written.popleft()
                    self._places[name] = place
                    yield event, self._cursor()
                self._news.clear()
                if not self._waiting:
                    await self._news.wait()
        finally:
            reading.cancel()
            self.close()

    async def send(self, request: str, attempt: int | None = None) -> int:
        """Ask the ranks of `attempt` (None: all that are connected); returns how many got it.

        A rank of that attempt that connects later is asked then, unless the request is only of the moment.
        """
        if attempt is not None and request in _KEPT:
            self._asked = {attempt: self._asked.get(attempt, set()) | {request}}
        wanted = [link for link, rank in self._ranks.items() if attempt is None or rank.attempt in {attempt, None}]
        return sum(self._tell(link, request) for link in wanted)

    def open(self) -> None:
        """Listen, in place of whoever did before. Raises `Unavailable`."""
        if self._listener is not None:
            return
        temporary = self._path.with_name(f".{self._path.name}{os.getpid()}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            listener.bind(str(temporary))
            temporary.chmod(0o600)
            listener.listen(_BACKLOG)
            temporary.rename(self._path)
        except OSError as problem:
            listener.close()
            raise Unavailable(
                f"{self._path}: the job's socket cannot be made: {problem.strerror or problem}"
            ) from problem
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        """Hang up. The path stays: it may be a successor's already."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for rank in list(self._ranks):
            self._drop(rank)
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    # --- the socket -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                rank, _ = self._listener.accept()
            except OSError:  # nobody more, or no descriptor left for them: they try again
                return
            rank.settimeout(0)
            self._ranks[rank] = _Rank()
            asyncio.get_running_loop().add_reader(rank, self._read, rank)

    def _read(self, rank: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if len(self._waiting) >= _WAITING:
                self._paused.add(rank)
                asyncio.get_running_loop().remove_reader(rank)
                return
            try:
                packet, _, flags, _ = rank.recvmsg(MAX_PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet, flags = b"", 0
            if not packet:
                self._drop(rank)
                return
            event = None if flags & socket.MSG_TRUNC else self._decode(packet)
            if event is None:
                self.bad += 1
                continue
            self._introduce(rank, event)
            self._waiting.append(event)
            self._news.set()

    def _introduce(self, rank: socket.socket, event: Reported) -> None:
        """The first packet says which attempt the rank is of; it may have missed a request."""
        known = self._ranks[rank]
        if known.attempt is None:
            known.attempt = event.attempt
            for request in sorted(self._asked.get(event.attempt, set()) - known.told):
                self._tell(rank, request)

    def _tell(self, rank: socket.socket, request: str) -> bool:
        """False for a rank that is gone or that has not read its last requests."""
        try:
            rank.send(request.encode(), socket.MSG_NOSIGNAL)
        except OSError:
            return False
        self._ranks[rank].told.add(request)
        return True

    def _drop(self, rank: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(rank)
        self._ranks.pop(rank, None)
        self._paused.discard(rank)
        rank.close()

    def _resume_reading(self) -> None:
        loop = asyncio.get_running_loop()
        for rank in self._paused:
            loop.add_reader(rank, self._read, rank)
        self._paused.clear()

    # --- events -----------------------------------------------------------------------------------------------------

    def _decode(self, data: bytes) -> Reported | None:
        try:
            event = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if self._job and event.job != self._job:
            return None
        return msgspec.structs.replace(event, source=self.name, seen_at=self._clock.now())

    def _cursor(self) -> str:
        return msgspec.json.encode(self._places).decode() if self._places else ""

    async def _read_files(self) -> None:
        """In a thread: the files may be on a shared file system that hangs, the socket's ranks go on meanwhile."""
        while self._files:
            if found := await asyncio.to_thread(self._lines_of, self._files):
                self._written.extend(found)
                self._news.set()
            await self._clock.sleep(_FILE_POLL_SECONDS)

    def _lines_of(self, folder: Path) -> list[tuple[Reported, str, str]]:
        """What ranks without a socket have appended to `<node>.<rank>.jsonl`: event, file, place in it."""
        found = []
        for path in sorted(folder.glob("*.jsonl")):
            if path.name not in self._tails:
                self._tails[path.name] = Tail(path, self._places.get(path.name, ""))
            try:
                lines = self._tails[path.name].read()
            except OSError:
                continue  # a shared file system may be away for a while; the place is kept
            for line in lines:
                event = self._decode(line.text)
                if event is not None:
                    key = event.id or f"{self.name}:{path.name}:{line.key}"
                    found.append((msgspec.structs.replace(event, id=key), path.name, line.cursor))
                elif line.text:
                    self.bad += 1
        return found
