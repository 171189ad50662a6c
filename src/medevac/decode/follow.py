"""Live logs: files that grow and rotate, /dev/kmsg, and pipes such as `journalctl -f`.

Each line is read once, when it is whole; one that cannot be read is passed over, never waited for.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.readers import Unreadable, reason
from medevac.decode.scanner import line_counter, make_scanner
from medevac.decode.stream import Decoder

KMSG = "/dev/kmsg"
_PIECE = 1 << 18
_LONGEST = 1 << 20  # bytes of an unfinished line that are kept


class Tail:
    """One growing file. `read` gives the events of what came since the last call."""

    def __init__(self, path: str, *, from_start: bool = False, node: str = "") -> None:
        self.path = path
        self._ctx = Context(node=node)
        self._decoder = _decoder(path, self._ctx)
        self._file: int | None = None
        self._inode = 0
        self._position = 0
        self._partial = b""
        self._skip_old = not from_start

    def read(self) -> list[FaultSeen]:
        """What is new. A file that is not there (yet, or for now) has nothing new."""
        events: list[FaultSeen] = []
        if self._file is not None:
            events += self._drain()
            if not self._rotated():
                return events
            self._leave()
        if self._open():
            events += self._drain()
        return events

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            self._skip_old = False  # a file that appears later is new from its first line
            return False
        except OSError as problem:
            raise Unreadable(self.path, reason(problem)) from problem
        status = os.fstat(self._file)
        self._inode = status.st_ino
        self._position = status.st_size if self._skip_old else 0
        os.lseek(self._file, self._position, os.SEEK_SET)
        self._skip_old = False
        return True

    def _rotated(self) -> bool:
        """Whether the path names another file by now, or this one was cut short."""
        try:
            status = Path(self.path).stat()
        except OSError:
            return False  # moved away; the rest of what we have open may still come
        return status.st_ino != self._inode or status.st_size < self._position

    def _leave(self) -> None:
        self.close()
        self._partial = b""

    def _drain(self) -> list[FaultSeen]:
        events: list[FaultSeen] = []
        while self._file is not None and (piece := os.read(self._file, _PIECE)):
            self._position += len(piece)
            lines, self._partial = whole_lines(self._partial + piece)
            if lines:
                events += self._decoder.feed(lines, len(lines))
        return events + self._decoder.finish()


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """`data` up to its last line end, and the rest. A rest that is too long for a line counts as one."""
    cut = data.rfind(b"\n") + 1
    if not cut and len(data) > _LONGEST:
        return data[:_LONGEST] + b"\n", b""
    return data[:cut], data[cut:]


class Kmsg:
    """The kernel's own buffer, one record a read. Its times become wall time by the machine's own two clocks."""

    def __init__(self, path: str = KMSG, *, from_start: bool = True, node: str = "") -> None:
        self._ctx = Context(node=node)
        self._decoder = _decoder(path, self._ctx)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as problem:
            raise Unreadable(path, reason(problem)) from problem
        if not from_start:
            os.lseek(self._file, 0, os.SEEK_END)
        self._ctx.clock.pinned = time.time() - time.monotonic()

    def read(self) -> list[FaultSeen]:
        """The events of the records that came since the last call."""
        events: list[FaultSeen] = []
        while record := self._record():
            line = record.partition(b"\n")[0] + b"\n"  # after it come KEY=value lines for programs
            events += self._decoder.feed(line, len(line))
        return events + self._decoder.finish()

    def close(self) -> None:
        """Let go of the device."""
        os.close(self._file)

    def _record(self) -> bytes:
        while True:
            try:
                return os.read(self._file, 8192)
            except BlockingIOError:
                return b""
            except OSError as problem:
                if problem.errno not in {errno.EPIPE, errno.EINVAL}:  # records lost before we came; one too long
                    raise Unreadable(KMSG, reason(problem)) from problem


class Pipe:
    """What another program writes, such as `journalctl -f -o json`."""

    def __init__(self, descriptor: int, name: str = "stdin", *, node: str = "") -> None:
        self._descriptor = descriptor
        self._decoder = _decoder(name, Context(node=node))
        self._partial = b""
        self.ended = False

    def read(self, wait_s: float = 0.0) -> list[FaultSeen]:
        """The events of what came, after waiting at most `wait_s` for something to come."""
        events: list[FaultSeen] = []
        while not self.ended and select.select([self._descriptor], [], [], wait_s)[0]:
            piece = os.read(self._descriptor, _PIECE)
            self.ended = not piece
            lines, self._partial = whole_lines(self._partial + piece)
            if self.ended and self._partial:
                lines, self._partial = self._partial, b""
            if lines:
                events += self._decoder.feed(lines, len(lines))
            wait_s = 0.0
        return events + self._decoder.finish()


def _decoder(name: str, ctx: Context) -> Decoder:
    return Decoder(name, ctx, make_scanner(), line_counter(1))


def follow(
    paths: list[str],
    *,
    node: str = "",
    from_start: bool = False,
    every_s: float = 0.5,
    stop: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[FaultSeen]:
    """Events of `paths` as they come, for ever (until `stop` says so, or stdin, given as `-`, has ended).

    Raises Unreadable for a path that may not be read; one that does not exist is waited for.
    """
    sources: list[Tail | Kmsg | Pipe] = [_source(path, node, from_start) for path in paths]
    try:
        while not stop():
            count = 0
            for source in sources:
                for event in source.read():
                    count += 1
                    yield event
            if all(isinstance(source, Pipe) and source.ended for source in sources):
                return
            if not count:
                sleep(every_s)
    finally:
        for source in sources:
            if not isinstance(source, Pipe):
                source.close()


def _source(path: str, node: str, from_start: bool) -> Tail | Kmsg | Pipe:  # noqa: FBT001 - passed on by name above
    if path == "-":
        return Pipe(0, node=node)
    if path == KMSG:
        return Kmsg(path, from_start=from_start, node=node)
    return Tail(path, from_start=from_start, node=node)
