"""The kernel's log: a file that syslog (or a simulated node) writes, or the kernel's own ring, /dev/kmsg."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from medevac.adapters.clock import SystemClock
from medevac.adapters.sources.tail import Tail
from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.lines import decode_line
from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable
from medevac.ports.source import Source

POLL_SECONDS = 0.2
_REMEMBERED = 1 << 20  # bytes before the cursor that are read again: later lines need the boot and driver they name
_RECORD = 16384  # the kernel refuses reads into less than one record (8 KiB since 5.x)


def kernel_log(path: Path, node: str, *, clock: Clock | None = None) -> Source:
    """The source for a kernel log at `path`, whichever kind it is."""
    try:
        ring = stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        ring = False
    return KernelRing(node, path=path, clock=clock) if ring else KernelLog(path, node, clock=clock)


class KernelLog:
    """Faults in a kernel-log file of `node`; lines that name another host are this node's all the same."""

    def __init__(
        self, path: Path, node: str, *, clock: Clock | None = None, poll_s: float = POLL_SECONDS, old: bool = True
    ) -> None:
        """`old`: without a cursor, begin with what stands in the file already."""
        self.name = f"{node}/kmsg"
        self._path = path
        self._node = node
        self._clock = clock or SystemClock()
        self._poll_s = poll_s
        self._old = old

    async def follow(self, cursor: str) -> AsyncIterator[tuple[FaultSeen, str]]:
        if not os.access(self._path, os.R_OK):
            raise Unavailable(f"{self._path}: does not exist or may not be read; join its group or name another file")
        tail = Tail(self._path, cursor)
        context = Context(reference=self._clock.now(), node=self._node)
        try:
            if cursor:
                for text in tail.before(_REMEMBERED):
                    decode_line(text, context)
            elif not self._old:
                tail.skip_to_end()
            while True:
                lines = tail.read()
                for line in lines:
                    context.clock.reference = self._clock.now()
                    if event := decode_line(line.text, context):
                        yield _named(event, self.name, line.key, self._node, self._clock.now()), line.cursor
                if not lines:
                    await self._clock.sleep(self._poll_s)
        except OSError as problem:
            raise Unavailable(f"{self._path}: {problem.strerror}") from problem
        finally:
            tail.close()


class KernelRing:
    """Faults in /dev/kmsg. The cursor is `<boot>:<sequence number>`; `lost` counts records that were overwritten."""

    def __init__(
        self,
        node: str,
        *,
        path: Path = Path("/dev/kmsg"),
        clock: Clock | None = None,
        opener: Callable[[], int] | None = None,
        boot: str | None = None,
    ) -> None:
        self.name = f"{node}/kmsg"
        self.lost = 0
        self._node = node
        self._path = path
        self._clock = clock or SystemClock()
        self._opener = opener or (lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self._boot = boot or Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    async def follow(self, cursor: str) -> AsyncIterator[tuple[FaultSeen, str]]:
        boot, _, taken = cursor.rpartition(":")
        last = int(taken) if boot == self._boot else -1
        context = Context(reference=self._clock.now(), node=self._node)
        uptime = time.clock_gettime(time.CLOCK_MONOTONIC)
        context.clock.joined("", 0.0, self._clock.now() - uptime)  # a record of the ring names no host
        descriptor = self._open()
        try:
            while True:
                record = self._read(descriptor)
                if record is None:
                    await self._clock.sleep(POLL_SECONDS)
                    continue
                number = _sequence(record)
                event = decode_line(record, context)
                if event and number > last:
                    key = f"{self._boot}:{number}"
                    yield _named(event, self.name, key, self._node, self._clock.now()), key
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return self._opener()
        except OSError as problem:
            raise Unavailable(f"{self._path}: {problem.strerror}; run as root or give a kernel-log file") from problem

    def _read(self, descriptor: int) -> bytes | None:
        """The next record, None when there is none yet."""
        while True:
            try:
                return os.read(descriptor, _RECORD) or None
            except BlockingIOError:
                return None
            except BrokenPipeError:  # overwritten before we came to it; the next read gives the oldest that is left
                self.lost += 1
            except OSError as problem:
                raise Unavailable(f"{self._path}: {problem.strerror}") from problem


def _sequence(record: bytes) -> int:
    """`6,1234,5678,-;text`: the second number."""
    fields = record.split(b";", 1)[0].split(b",")
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else -1


def _named(event: FaultSeen, source: str, key: str, node: str, now: float) -> FaultSeen:
    """The event with where it stands; a line without a readable time gets that of reading it."""
    return msgspec.structs.replace(
        event, id=f"{source}:{key}", source=source, node=node or event.node, at=event.at or now, seen_at=now
    )
