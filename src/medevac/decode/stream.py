"""From the bytes of one log to its events, in order, in constant memory: scan a block, parse the lines it points at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from medevac.core.events import FaultSeen
from medevac.decode import nvrm
from medevac.decode.context import Context
from medevac.decode.joiner import Joiner
from medevac.decode.lines import decode_line
from medevac.decode.readers import Unreadable
from medevac.decode.scanner import GOING_ON, Scanner, line_counter, make_scanner

BLOCK = 1 << 20  # bytes scanned at once: fits the second-level cache
LONGEST = 4  # blocks that a line may be long; of a longer one the beginning is read
_BATCH = 512  # lines found before they are parsed: between two scans of a block the parser's code is cold
_LOOK_AHEAD = 2  # lines taken after one whose fact may go on without an anchor
_GOES_ON = re.compile(rb"AER: |PCIe Bus E|nel panic|error status/mask|: {2,8}\[ ?\d")


class Readable(Protocol):
    """A binary stream."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill `buffer` as far as possible; 0 at the end."""


class Decoder:
    """The lines of one log, given in blocks.

    `feed` takes whole lines (the last one may lack its end), `finish` says that nothing follows. Line numbers count
    from 1 over all that was fed.
    """

    def __init__(self, name: str, ctx: Context, scanner: Scanner, count: Callable[..., int], line: int = 1) -> None:
        self.name = name
        self.ctx = ctx
        self._scanner = scanner
        self._count = count
        self._joiner = Joiner()
        self._line = line  # number of the next line
        self._ahead = 1  # what a cut log begins with may go on from a line that is not there
        self._found: list[tuple[bytes, int]] = []
        self._long: list[bytes] = []
        self._long_line = 0

    def feed(self, data: bytes | bytearray, size: int) -> list[FaultSeen]:
        """Take `data[:size]`; gives the events that are read by then."""
        self._find(data, size)
        return self.read_so_far() if len(self._found) >= _BATCH else []

    def _find(self, data: bytes | bytearray, size: int) -> None:
        """Keep the lines that an anchor hits, and the few after some of them."""
        at, line, ahead = 0, self._line, self._ahead
        hits = self._scanner.scan(data, size)
        hits.append((-1, size, size))
        each = iter(hits)
        which, hit, _ = next(each)
        count, keep = self._count, self._found.append
        while at < size:
            start, may_go_on = at, ahead > 0
            if may_go_on:
                ahead -= 1
            elif hit >= size:
                break
            else:
                start = data.rfind(b"\n", at, hit) + 1 or at
                if start > at:
                    line += count(data, at, start)
            end = data.find(b"\n", start, size)
            if end < 0:
                end = size
            while hit < end:
                may_go_on = may_go_on or which in GOING_ON
                which, hit, _ = next(each)
            raw = bytes(data[start:end])
            keep((raw, line))
            if may_go_on and _GOES_ON.search(raw, 0, 400):
                ahead = _LOOK_AHEAD
            at = end + 1
            line += end < size
        if at < size:
            line += count(data, at, size)
        self._line, self._ahead = line, ahead

    def read_so_far(self) -> list[FaultSeen]:
        """The events that are known by now, without those that the next lines may add to."""
        out: list[FaultSeen] = []
        for raw, line in self._found:
            if events := self._record(raw, line):
                out += events
        self._found.clear()
        return out

    def skip(self, data: bytes | bytearray, size: int) -> None:
        """Pass over the rest of a line that is longer than a block."""
        self._line += self._count(data, 0, size)

    def finish(self) -> list[FaultSeen]:
        """The last events, when nothing follows (or nothing for now)."""
        out = self.read_so_far()
        if self._long:
            out += self._end_long()
        self._ahead = 0
        return out + self._joiner.flush()

    def _record(self, raw: bytes, line: int) -> list[FaultSeen]:
        if self._long:
            return self._longer(raw, line)
        event = decode_line(raw, self.ctx, self.name, line)
        if event is None:
            return []
        if event.kind == "nvrm_other":
            if nvrm.begins_long(event.raw[event.raw.find("NVRM") :]):
                self._long, self._long_line = [raw], line
                return []
            if raw.startswith(b"        ") and not event.details:  # the second line of a record of several
                return []
        return self._joiner.add(event)

    def _longer(self, raw: bytes, line: int) -> list[FaultSeen]:
        """A further line of "The NVIDIA GPU ... has fallen off the bus"."""
        follows = line == self._long_line + len(self._long)
        if follows and b"NVRM" in raw and b"Xid" not in raw:
            self._long.append(raw[raw.find(b"NVRM") :])
            return [] if len(self._long) < 4 and b"fallen off" not in raw else self._end_long()
        return self._end_long() + self._record(raw, line)

    def _end_long(self) -> list[FaultSeen]:
        whole = b"\n".join(self._long)
        self._long = []
        event = decode_line(whole, self.ctx, self.name, self._long_line)
        return [] if event is None else self._joiner.add(event)


def decode_stream(
    stream: Readable,
    name: str,
    *,
    ctx: Context | None = None,
    size: int = 0,
) -> Iterator[FaultSeen]:
    """The events of one decompressed binary stream, in order.

    `size` is about how many bytes will come (0: not known). Where the stream cannot be read on, its own error is raised
    after all events of what came before.
    """
    context = ctx or Context()
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    source = _Source(stream)
    have = source.fill(view, 0)
    decoder = Decoder(name, context, make_scanner(), line_counter(size))
    inside = False  # a line longer than the block
    while have:
        last = buffer.rfind(b"\n", 0, have) + 1
        full = have == len(buffer)
        if full and not last and not inside and have < LONGEST * BLOCK:
            buffer, view = _roomier(buffer)
            have += source.fill(view, have)
            continue
        use = last if last and full else have
        if inside:
            first = buffer.find(b"\n", 0, have) + 1 or have
            decoder.skip(buffer, first)
            inside = first == have and buffer[have - 1] != 10
            view[: have - first] = bytes(view[first:have])
            have -= first
            if have < len(buffer):
                have += source.fill(view, have)
            continue
        yield from decoder.feed(buffer, use)
        if full and not last:
            inside = True
        rest = have - use
        if rest:
            view[:rest] = bytes(view[use:have])
        got = source.fill(view, rest) if full else 0
        if not full:
            break
        have = rest + got
    yield from decoder.finish()
    if source.broken:
        raise source.broken


def _roomier(buffer: bytearray) -> tuple[bytearray, memoryview]:
    """Twice the room for the same bytes: a line is longer than a block."""
    larger = bytearray(2 * len(buffer))
    larger[: len(buffer)] = buffer
    return larger, memoryview(larger)


class _Source:
    """A stream that may break: then it has ended, and `broken` says why."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.broken: Exception | None = None

    def fill(self, view: memoryview, have: int) -> int:
        """Read until `view` is full from `have` on, or the stream ends; gives the bytes read."""
        start = have
        try:
            while self.broken is None and have < len(view) and (got := self._stream.readinto(view[have:])):
                have += got
        except (OSError, EOFError, Unreadable) as problem:
            self.broken = problem
        return have - start
