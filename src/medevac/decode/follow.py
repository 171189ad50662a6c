"""Live logs: files that grow and rotate, /dev/kmsg, and pipes such as `journalctl -f`.

Each line is read once, when it is whole; one that cannot be read is passed over, never waited for. A line that others
may go on from (an SXid, an AER report) is given out when nothing new has come for one look.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.export import SIGN, ExportDecoder
from medevac.decode.readers import BOM, Unreadable, reason
from medevac.decode.scanner import line_counter, make_scanner
from medevac.decode.stream import BLOCK, LONGEST, Decoder

KMSG = "/dev/kmsg"
_PIECE = 1 << 18
_KNOWN_AGAIN = 64  # bytes before our place in a file that tell whether it is still the same text


def _ignore(_words: str) -> None:
    """What nobody asked to hear."""


class Feed:
    """Bytes as they come, in pieces of any size, to events: whole lines, or entries of `journalctl -o export`."""

    def __init__(self, name: str, ctx: Context, *, export: bool = False, line: int = 1) -> None:
        self._name = name
        self._ctx = ctx
        self._partial = b""
        self._inside = False  # a line of which enough was read
        self._begun = line > 1
        self._lines = Decoder(name, ctx, make_scanner(), line_counter(1), line)
        self._export = ExportDecoder(name, ctx) if export else None

    def take(self, data: bytes) -> list[FaultSeen]:
        """The events of `data`; those that wait for more lines of their fact come later."""
        self._ctx.clock.reference = time.time()
        if not self._begun:
            data = (self._partial + data).removeprefix(BOM)
            if any(len(data) < len(sign) and sign.startswith(data) for sign in (SIGN, BOM)):
                self._partial = data
                return []
            self._begun, self._partial = True, b""
            if data.startswith(SIGN):
                self._export = ExportDecoder(self._name, self._ctx)
        if self._export is not None:
            return self._export.feed(data)
        if self._inside:
            end = data.find(b"\n") + 1
            self._inside = not end
            self._lines.skip(data, end or len(data))
            data = data[end or len(data) :]
        data = self._partial + data
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > LONGEST * BLOCK:
            self._inside, cut = True, len(data)
        lines, self._partial = data[:cut], data[cut:]
        return self._lines.feed(lines, cut) + self._lines.read_so_far() if cut else []

    def quiet(self) -> list[FaultSeen]:
        """Nothing came since: those that waited."""
        return [] if self._export is not None else self._lines.finish()

    def end(self) -> list[FaultSeen]:
        """No more will come: a line that has no end is one."""
        if self._export is not None:
            return self._export.finish()
        last, self._partial = self._partial, b""
        return (self._lines.feed(last, len(last)) if last else []) + self._lines.finish()


class Tail:
    """One growing file. `read` gives the events of what came since the last call.

    `notice` is told, once, that the file is not there or may not be read any more.
    """

    def __init__(
        self, path: str, *, from_start: bool = False, node: str = "", notice: Callable[[str], None] = _ignore
    ) -> None:
        self.path = path
        self._ctx = Context(node=node)
        self._feed = Feed(path, self._ctx)
        self._notice = notice
        self._file: int | None = None
        self._inode = 0
        self._position = 0
        self._before = b""
        self._regular = True
        self._skip_old = not from_start
        self._opened = False
        self._waits = False

    def read(self) -> list[FaultSeen]:
        """What is new. A file that is not there (yet, or for now) has nothing new."""
        events: list[FaultSeen] = []
        if self._file is not None:
            moved, rewritten = self._rotated()  # asked first: what was written before the answer is read now
            if not rewritten:
                events += self._drain()
            if not moved and not rewritten:
                return events
            events += self._feed.end()
            self.close()
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
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as problem:
            return self._wait(problem)
        self._opened, self._waits = True, False
        status = os.fstat(self._file)
        if stat.S_ISDIR(status.st_mode):
            self.close()
            raise Unreadable(self.path, "is a folder: name the files in it")
        self._inode = status.st_ino
        self._regular = stat.S_ISREG(status.st_mode)
        self._position, self._before, line = 0, b"", 1
        if self._skip_old and self._regular:
            line = self._pass_over(self._file)
        self._skip_old = False
        export = self._regular and os.pread(self._file, len(SIGN), 0) == SIGN
        self._feed = Feed(self.path, self._ctx, export=export, line=line)
        return True

    def _wait(self, problem: OSError) -> bool:
        missing = isinstance(problem, FileNotFoundError)
        if not missing and not self._opened:
            raise Unreadable(self.path, reason(problem)) from problem
        self._skip_old = False  # a file that appears later is new from its first line
        if not self._waits:
            self._waits = True
            self._notice(f"{self.path}: {'is not there yet' if missing else reason(problem)}: waiting for it")
        return False

    def _pass_over(self, file: int) -> int:
        """Go to the last line's end, and count the lines before it; gives the number of the next line."""
        line, at = 1, 0
        while piece := os.read(file, _PIECE):
            if (ends := piece.count(b"\n")) > 0:
                line += ends
                self._position = at + piece.rfind(b"\n") + 1
            at += len(piece)
        os.lseek(file, self._position, os.SEEK_SET)
        return line

    def _rotated(self) -> tuple[bool, bool]:
        """Whether the path names another file by now, and whether this one was written anew from its start."""
        if not self._regular or self._file is None:
            return False, False
        try:
            status = Path(self.path).stat()
        except OSError:
            return False, False  # moved away; the rest of what we have open may still come
        if status.st_ino != self._inode:
            return True, False
        start = self._position - len(self._before)
        return False, os.pread(self._file, len(self._before), start) != self._before

    def _drain(self) -> list[FaultSeen]:
        events: list[FaultSeen] = []
        came = False
        while self._file is not None and (piece := _some(self._file)):
            came = True
            self._position += len(piece)
            self._before = (self._before + piece)[-_KNOWN_AGAIN:]
            events += self._feed.take(piece)
        return events if came else self._feed.quiet()


def _some(file: int) -> bytes:
    try:
        return os.read(file, _PIECE)
    except BlockingIOError:  # a pipe by name, whose writer says nothing now
        return b""


class Kmsg:
    """The kernel's own buffer, one record a read. Its times become wall time by the machine's own two clocks."""

    def __init__(self, path: str = KMSG, *, from_start: bool = True, node: str = "") -> None:
        self._ctx = Context(node=node)
        self._decoder = Decoder(path, self._ctx, make_scanner(), line_counter(1))
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
        self._feed = Feed(name, Context(node=node))
        self.ended = False

    def read(self, wait_s: float = 0.0) -> list[FaultSeen]:
        """The events of what came, after waiting at most `wait_s` for something to come."""
        events: list[FaultSeen] = []
        came = False
        while not self.ended and select.select([self._descriptor], [], [], wait_s)[0]:
            came = True
            piece = os.read(self._descriptor, _PIECE)
            self.ended = not piece
            events += self._feed.take(piece) if piece else self._feed.end()
            wait_s = 0.0
        return events if came else self._feed.quiet()


def follow(
    paths: list[str],
    *,
    node: str = "",
    from_start: bool = False,
    every_s: float = 0.5,
    stop: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    notice: Callable[[str], None] = _ignore,
) -> Iterator[FaultSeen]:
    """Events of `paths` as they come, for ever (until `stop` says so, or stdin, given as `-`, has ended).

    Raises Unreadable for a path that may not be read; one that does not exist is waited for, and `notice` told once.
    """
    sources: list[Tail | Kmsg | Pipe] = [_source(path, node, from_start, notice) for path in paths]
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


def _source(
    path: str,
    node: str,
    from_start: bool,  # noqa: FBT001 - passed on by name
    notice: Callable[[str], None],
) -> Tail | Kmsg | Pipe:
    if path == "-":
        return Pipe(0, node=node)
    if path == KMSG:
        return Kmsg(path, from_start=from_start, node=node)
    return Tail(path, from_start=from_start, node=node, notice=notice)
