"""`journalctl -o export`: entries of KEY=value lines (or KEY, length, bytes), divided by empty lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.lines import decode_record
from medevac.decode.wrapper import journal

SIGN = b"__CURSOR="
_LONGEST = 1 << 20  # bytes of one field
_WANTED = frozenset(
    {
        "MESSAGE",
        "_TRANSPORT",
        "SYSLOG_IDENTIFIER",
        "_COMM",
        "_HOSTNAME",
        "_PID",
        "__REALTIME_TIMESTAMP",
        "_SOURCE_REALTIME_TIMESTAMP",
        "_SOURCE_MONOTONIC_TIMESTAMP",
    }
)


def decode_export(stream: Any, name: str, ctx: Context) -> Iterator[FaultSeen]:
    """The events of an export stream. `line` is the line of the entry's MESSAGE."""
    reader = io.BufferedReader(cast("io.RawIOBase", stream), 1 << 18)
    record: dict[str, Any] = {}
    line, at = 0, 0
    while raw := reader.readline(_LONGEST):
        line += raw.endswith(b"\n")
        key, found, value = raw.rstrip(b"\r\n").partition(b"=")
        if not key and not found:
            yield from _entry(record, name, at, ctx)
            record = {}
            continue
        field = key.decode("ascii", "replace")
        at = line if field == "MESSAGE" else at
        if not found:
            value = _binary(reader)
            line += value.count(b"\n") + 1
        if field in _WANTED:
            record[field] = value.decode("utf-8", "replace")
    yield from _entry(record, name, at, ctx)


def _binary(reader: Any) -> bytes:
    """The value of a field that is not one line of text: 8 bytes of length, then itself, then a line end."""
    size = int.from_bytes(reader.read(8), "little")
    kept: bytes = reader.read(min(size, _LONGEST))
    left = size - len(kept)
    while left > 0 and (more := reader.read(min(left, _LONGEST))):
        left -= len(more)
    reader.read(1)
    return kept


def _entry(record: dict[str, Any], name: str, line: int, ctx: Context) -> Iterator[FaultSeen]:
    head = journal(record, ctx.clock) if "MESSAGE" in record else None
    event = decode_record(head, str(record["MESSAGE"]), (name, line), ctx) if head else None
    if event is not None:
        yield event
