"""What an input really is: plain or compressed, or a tar of logs. Told by its first bytes, not its name."""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, Self, cast

Progress = Callable[[int], None]
"""Called now and then with the bytes of input (as stored) done since the last call."""

_CHUNK = 1 << 18
_ZSTD_PIECE = 1 << 12  # bytes decompressed at once: what they become is kept whole
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # a zstd frame without data, which pzstd begins with
_LAYERS = 3  # of packing around one log
BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"LPKSHHRH": "is a binary journal: give the output of `journalctl -o json --file ...` instead",
    b"PK\x03\x04": "is a zip archive: `unzip -p FILE | medevac decode`",
    b"7z\xbc\xaf\x27\x1c": "is a 7z archive: `7z x -so FILE | medevac decode`",
    b"\x04\x22\x4d\x18": "is lz4: `lz4cat FILE | medevac decode`",
    b"\x1f\x9d": "is packed by compress: `zcat FILE | medevac decode`",
    b"\xff\xfe": "is UTF-16: `iconv -f UTF-16 -t UTF-8 FILE | medevac decode`",
    b"\xfe\xff": "is UTF-16: `iconv -f UTF-16 -t UTF-8 FILE | medevac decode`",
}
"""First bytes of what is not read, in which faults would be missed without a word."""


class Unreadable(Exception):
    """An input, or the rest of it, could not be read. The message names it and says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class Log(NamedTuple):
    """One readable log: `stream` gives decompressed bytes, `size` is a guess of how many, `mtime` unix seconds."""

    name: str
    stream: Any
    size: int
    mtime: float | None


class Counted(io.RawIOBase):
    """A stream that reports how far it was read, keeps its first bytes for a look, and names itself when it breaks."""

    def __init__(self, inner: BinaryIO, name: str, progress: Progress | None = None) -> None:
        super().__init__()
        # One read at a time: what came before a break is given out, not lost with it.
        self._into: Callable[[Any], int | None] = getattr(inner, "readinto1", None) or inner.readinto  # type: ignore[attr-defined]
        self._name = name
        self._progress = progress
        self._head = b""
        self._broken: Unreadable | None = None

    def readable(self) -> bool:
        return True

    @classmethod
    def failed(cls, problem: Unreadable) -> Self:
        """One that gives nothing but this problem."""
        stream = cls(io.BytesIO(), problem.name)
        stream._broken = problem
        return stream

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, or as many as there are, left to be read again. Where it breaks is told by reading."""
        try:
            while len(self._head) < size:
                piece = bytearray(size - len(self._head))
                got = self._take(piece)
                if not got:
                    break
                self._head += piece[:got]
        except Unreadable as problem:
            self._broken = problem
        return self._head[:size]

    def _take(self, buffer: Any) -> int:
        if self._broken is not None:
            raise self._broken
        try:
            return self._into(buffer) or 0
        except _broken() as problem:
            raise Unreadable(self._name, reason(problem)) from problem

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        if self._head:
            got = min(len(view), len(self._head))
            view[:got] = self._head[:got]
            self._head = self._head[got:]
        else:
            got = self._take(view)
        if self._progress and got:
            self._progress(got)
        return got


class Inflated(io.RawIOBase):
    """A gzip stream of any number of members, decompressed. Quicker than the gzip module: larger pieces, one check."""

    def __init__(self, inner: Counted) -> None:
        super().__init__()
        self._inner = inner
        self._zlib = zlib.decompressobj(31)
        self._input = b""
        self._begun = False
        self._broken: zlib.error | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        while True:
            if self._broken is not None:
                raise self._broken
            if not self._input and not self._refill():
                return 0
            out = self._inflate(len(view))
            self._begun = True
            self._input = self._zlib.unconsumed_tail
            if self._zlib.eof:
                self._input = self._zlib.unused_data.lstrip(b"\0")
                self._zlib, self._begun = zlib.decompressobj(31), False
            if out:
                view[: len(out)] = out
                return len(out)

    def _inflate(self, most: int) -> bytes:
        """What comes next, at most `most` bytes; before a break, what is left until there."""
        before = self._zlib.copy()
        try:
            return self._zlib.decompress(self._input, most)
        except zlib.error as problem:
            self._broken = problem
            out = bytearray()
            with contextlib.suppress(zlib.error):
                for at in range(len(self._input)):
                    out += before.decompress(self._input[at : at + 1])
            return bytes(out[:most])

    def _refill(self) -> bool:
        self._input = self._inner.read(_CHUNK) or b""
        if not self._input and self._begun:
            raise EOFError("it ends in the middle of its gzip data")
        return bool(self._input)


class Unzstd(io.RawIOBase):
    """A zstd stream of any number of frames, decompressed. The package's own reader does not tell a cut one."""

    def __init__(self, inner: Counted, begin: Callable[[], Any]) -> None:
        super().__init__()
        self._inner = inner
        self._begin = begin
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        while not self._output:
            if not self._input and not self._refill():
                return 0
            self._frame = self._frame or self._begin()
            piece, self._input = self._input[:_ZSTD_PIECE], self._input[_ZSTD_PIECE:]
            self._output = memoryview(self._frame.decompress(piece))
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data + self._input, None
        got = min(len(view), len(self._output))
        view[:got] = self._output[:got]
        self._output = self._output[got:]
        return got

    def _refill(self) -> bool:
        self._input = self._inner.read(_CHUNK) or b""
        if not self._input and self._frame is not None:
            raise EOFError("it ends in the middle of its zstd data")
        return bool(self._input)


def open_path(path: str, progress: Progress | None = None) -> Iterator[Log]:
    """The logs in a file: itself, or the members of the tar it is. Raises Unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise Unreadable(path, reason(problem)) from problem
    with io.FileIO(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        yield from open_stream(cast("BinaryIO", file), path, progress, status.st_size, status.st_mtime)


def open_stream(
    inner: BinaryIO,
    name: str,
    progress: Progress | None = None,
    size: int = 0,
    mtime: float | None = None,
) -> Iterator[Log]:
    """The same for an open binary stream. Its `Log.stream` raises Unreadable too, where it breaks."""
    stream, packed = _unpacked(Counted(inner, name, progress), name)
    head = stream.peek(512)
    if head[257:262] == b"ustar":
        yield from _members(stream, name)
    elif other := next((why for sign, why in _OTHERS.items() if head.startswith(sign)), None):
        raise Unreadable(name, other)
    else:
        if head.startswith(BOM):
            stream.read(len(BOM))
        yield Log(name, stream, size * 12 if packed else size, mtime)


def _unpacked(raw: Counted, name: str) -> tuple[Counted, bool]:
    """Without its packing, of which there may be some layers; and whether there was any."""
    stream = raw
    for _ in range(_LAYERS):
        stream, packed = _decompressed(stream, name)
        if not packed:
            break
    return stream, stream is not raw


def _decompressed(raw: Counted, name: str) -> tuple[Counted, bool]:
    head = raw.peek(6)
    inner: Any
    if head.startswith(b"\x1f\x8b"):
        inner = Inflated(raw)
    elif head.startswith(b"\xfd7zXZ\0"):
        inner = lzma.LZMAFile(  # noqa: SIM115 - closed with the file below it
            cast("BinaryIO", io.BufferedReader(raw, _CHUNK))
        )
    elif head.startswith(b"BZh"):
        inner = bz2.BZ2File(cast("BinaryIO", io.BufferedReader(raw, _CHUNK)))
    elif head.startswith(b"\x28\xb5\x2f\xfd") or _SKIPPABLE.match(head):
        inner = _zstd(raw, name)
    else:
        return raw, False
    return Counted(cast("BinaryIO", inner), name), True


def _zstd(raw: Counted, name: str) -> Any:
    try:
        import zstandard
    except ImportError as missing:
        raise Unreadable(name, "is zstd: install medevac[zstd], or pipe `zstdcat` into `medevac decode -`") from missing
    return Unzstd(raw, zstandard.ZstdDecompressor().decompressobj)


def _members(stream: Counted, name: str) -> Iterator[Log]:
    """Each regular file of a tar, read in place; a compressed one is opened as well."""
    try:
        with tarfile.open(fileobj=cast("BinaryIO", io.BufferedReader(stream, _CHUNK)), mode="r|") as archive:
            for member in archive:
                inner = archive.extractfile(member) if member.isreg() else None
                if inner is not None and not member.name.endswith((".journal", ".journal~")):  # text stands beside
                    inside = f"{name}:{member.name}"
                    yield from _member(cast("BinaryIO", inner), inside, member)
    except tarfile.TarError as problem:
        raise Unreadable(name, reason(problem)) from problem


def _member(inner: BinaryIO, name: str, member: tarfile.TarInfo) -> Iterator[Log]:
    """One that cannot be read says so when it is read: the members after it are still done."""
    try:
        yield from open_stream(inner, name, None, member.size, float(member.mtime))
    except Unreadable as problem:
        yield Log(name, Counted.failed(problem), 0, None)


def _broken() -> tuple[type[Exception], ...]:
    """What the libraries raise on data that is cut or damaged."""
    usual = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)
    zstandard = sys.modules.get("zstandard")
    return usual if zstandard is None else (*usual, zstandard.ZstdError)


def reason(problem: BaseException) -> str:
    """Why, in words for a person, without the file's name."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return str(problem) or type(problem).__name__
