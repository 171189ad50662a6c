"""`journalctl -o export`: entries of KEY=value lines (or KEY, length, bytes), divided by empty lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.lines import decode_record
from medevac.decode.wrapper import journal

SIGN = b"__CURSOR="
_PIECE = 1 << 18
_LONGEST = 1 << 20  # bytes of one field that are kept
_WANTED = frozenset(
    {
        b"MESSAGE",
        b"_TRANSPORT",
        b"SYSLOG_IDENTIFIER",
        b"_COMM",
        b"_HOSTNAME",
        b"_PID",
        b"__REALTIME_TIMESTAMP",
        b"_SOURCE_REALTIME_TIMESTAMP",
        b"_SOURCE_MONOTONIC_TIMESTAMP",
    }
)


class ExportDecoder:
    """An export stream, given in pieces of any size.

    `line` of an event is the line of its entry's MESSAGE. `feed` takes the next piece, `finish` says that nothing
    follows: an entry that is not closed by an empty line is read then.
    """

    def __init__(self, name: str, ctx: Context) -> None:
        self._name = name
        self._ctx = ctx
        self._data = b""
        self._record: dict[str, Any] = {}
        self._line = 0  # lines that are whole
        self._begun = 0  # where the field begins that is read now
        self._at = 0
        self._cut = False
        self._field = b""
        self._left = 0
        self._kept: list[bytes] = []

    def feed(self, data: bytes) -> list[FaultSeen]:
        """Take the next bytes; gives the events of the entries that they end."""
        events: list[FaultSeen] = []
        self._data += data
        at = 0
        while (after := self._step(at, events)) > at:
            at = after
        self._data = self._data[at:]
        return events

    def finish(self) -> list[FaultSeen]:
        """The events of what is left."""
        events = self.feed(b"\n") if self._data else []
        self._end(events)
        return events

    def _step(self, at: int, events: list[FaultSeen]) -> int:
        """Take one line, or a piece of a binary value, from `at` on; gives where it ends, `at` if it is not whole."""
        if self._left:
            return self._binary(at)
        end = self._data.find(b"\n", at)
        if end < 0:
            return self._too_long(at)
        if self._cut:  # the rest of it
            self._cut = False
            self._line += 1
            return end + 1
        field, found, value = self._data[at:end].rstrip(b"\r").partition(b"=")
        if not field and not found:
            self._line += 1
            self._end(events)
        elif found:
            self._line += 1
            self._begun = self._line
            self._keep(field, value)
        else:
            return self._begin_binary(field, end + 1) or at
        return end + 1

    def _too_long(self, at: int) -> int:
        """A line that does not end is cut, its rest passed over."""
        if not self._cut:
            if len(self._data) - at <= _LONGEST:
                return at
            field, _, value = self._data[at:].partition(b"=")
            self._begun = self._line + 1
            self._keep(field, value)
            self._cut = True
        return len(self._data)

    def _begin_binary(self, field: bytes, start: int) -> int:
        """8 bytes of length after a name alone; 0 while they are not there."""
        if len(self._data) < start + 8:
            return 0
        self._line += 1
        self._begun = self._line
        self._field, self._kept = field, []
        self._left = int.from_bytes(self._data[start : start + 8], "little") + 1  # and a line end
        return start + 8

    def _binary(self, at: int) -> int:
        piece = self._data[at : at + self._left]
        self._left -= len(piece)
        self._line += piece.count(b"\n")
        if sum(map(len, self._kept)) < _LONGEST:
            self._kept.append(piece)
        if not self._left:
            self._keep(self._field, b"".join(self._kept).removesuffix(b"\n"))
        return at + len(piece)

    def _keep(self, field: bytes, value: bytes) -> None:
        if field in _WANTED:
            self._record[field.decode()] = value[:_LONGEST].decode("utf-8", "replace")
            if field == b"MESSAGE":
                self._at = self._begun

    def _end(self, events: list[FaultSeen]) -> None:
        record, self._record = self._record, {}
        head = journal(record, self._ctx.clock) if "MESSAGE" in record else None
        event = decode_record(head, str(record["MESSAGE"]), (self._name, self._at), self._ctx) if head else None
        if event is not None:
            events.append(event)


def decode_export(stream: Any, name: str, ctx: Context) -> Iterator[FaultSeen]:
    """The events of an export stream."""
    decoder = ExportDecoder(name, ctx)
    while piece := stream.read(_PIECE):
        yield from decoder.feed(piece)
    yield from decoder.finish()
