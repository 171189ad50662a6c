"""Complete lines of a file that grows, is rotated away or is truncated, each once over any number of restarts.

A file is known by its inode and the checksum of its first line: an inode alone comes back after a rotation, and a
file truncated in place (logrotate's copytruncate) keeps it. A line counts when its newline is there.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

_CHUNK = 1 << 20
_FIRST = 4096  # bytes of the first line that tell files apart
_QUIET_READS = 2  # a rotated file may still be written to by who has it open: so many reads without news end it


class Line(NamedTuple):
    """One line without its newline. `key` names it for ever; `cursor` is where the next one begins."""

    text: bytes
    key: str
    cursor: str


class Tail:
    """Follows `path` from `cursor` ("" for its beginning). Not for files whose reads may hang."""

    def __init__(self, path: Path, cursor: str = "") -> None:
        self.path = path
        self._descriptor = -1
        self._identity, self._offset = _parse(cursor)
        self._buffer = b""
        self._size = -1
        self._skipping = False
        self._quiet = 0
        self._finished: set[str] = set()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def skip_to_end(self) -> None:
        """Leave out what stands in the file now, up to its last newline."""
        while self.read():
            continue

    def before(self, size: int) -> list[bytes]:
        """Up to `size` bytes of lines in front of the position."""
        if not self._opened():
            return []
        start = max(0, self._offset - size)
        lines = os.pread(self._descriptor, self._offset - start, start).split(b"\n")
        return lines[1 if start else 0 : -1]

    def read(self) -> list[Line]:
        """The lines that came since the last call, none where there is no file. Raises OSError."""
        if not self._opened() or not self._same_file():
            return []
        fresh = os.pread(self._descriptor, _CHUNK, self._offset + len(self._buffer))
        if fresh:
            self._quiet = 0
            return self._split(fresh)
        return self._at_end()

    def _split(self, fresh: bytes) -> list[Line]:
        *complete, self._buffer = (self._buffer + fresh).split(b"\n")
        lines = []
        for text in complete:
            start, self._offset = self._offset, self._offset + len(text) + 1
            if not self._skipping:
                lines.append(self._line(text, start))
            self._skipping = False
        if len(self._buffer) > _CHUNK:  # no line of a log: let it pass in bounded memory
            self._offset += len(self._buffer)
            self._buffer, self._skipping = b"", True
        return lines

    def _line(self, text: bytes, start: int) -> Line:
        return Line(text, f"{self._identity}:{start}", f"{self._identity}:{self._offset}")

    def _at_end(self) -> list[Line]:
        """Go on to the next file where this one was rotated away; what is left of it then is its last line."""
        following = self._following()
        if following is None:
            return []
        self._quiet += 1
        if self._quiet < _QUIET_READS:
            return []
        start, rest = self._offset, self._buffer
        self._offset += len(rest)
        last = [self._line(rest, start)] if rest and not self._skipping else []
        self._finished.add(self._identity)
        self._open(following, "", 0)
        return last

    def _following(self) -> Path | None:
        own = os.fstat(self._descriptor)
        current = _status(self.path)
        if current is None or (current.st_dev, current.st_ino) == (own.st_dev, own.st_ino):
            return None
        between = [
            (status.st_mtime_ns, path)
            for path in _siblings(self.path)
            if (status := _status(path))
            and status.st_mtime_ns >= own.st_mtime_ns
            and status.st_ino != own.st_ino
            and _identity_of(path) not in self._finished
        ]
        return min(between)[1] if between else self.path

    def _opened(self) -> bool:
        if self._descriptor >= 0:
            return True
        if self._identity:
            for path in (self.path, *_siblings(self.path)):
                if _identity_of(path) == self._identity:
                    return self._open(path, self._identity, self._offset)
        return self._open(self.path, "", 0)

    def _open(self, path: Path, identity: str, offset: int) -> bool:
        self.close()
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        self._identity, self._offset = identity, offset
        self._buffer, self._skipping, self._size, self._quiet = b"", False, -1, 0
        return True

    def _same_file(self) -> bool:
        """Whether the open file is (still) the one we know; begins again where it was truncated or written anew."""
        size = os.fstat(self._descriptor).st_size
        if size == self._size and self._identity:
            return True
        self._size = size
        identity = _identify(self._descriptor)
        if identity != self._identity or size < self._offset:
            self._identity, self._offset = identity, 0
            self._buffer, self._skipping = b"", False
        return bool(identity)


def _parse(cursor: str) -> tuple[str, int]:
    identity, _, offset = cursor.rpartition(":")
    return (identity, int(offset)) if identity and offset.isdecimal() else ("", 0)


def _identify(descriptor: int) -> str:
    """Inode and checksum of the first line; "" while that is not complete."""
    head = os.pread(descriptor, _FIRST, 0)
    first, newline, _ = head.partition(b"\n")
    if not newline and len(head) < _FIRST:
        return ""
    return f"{os.fstat(descriptor).st_ino}-{zlib.crc32(first):08x}"


def _identity_of(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return _identify(descriptor)
    finally:
        os.close(descriptor)


def _siblings(path: Path) -> list[Path]:
    """Where rotation may have put the file: kern.log.1, kern.log-20260131; compressed ones are past following."""
    try:
        found = sorted(path.parent.iterdir())
    except FileNotFoundError:
        return []
    names = (f"{path.name}.", f"{path.name}-")
    return [p for p in found if p.name.startswith(names) and p.suffix not in {".gz", ".xz", ".zst", ".bz2"}]


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
