"""JSON around a line: journald's own, a container runtime's, a log shipper's."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from medevac.decode.clock import Clock
from medevac.decode.prefix import Head, split

_MESSAGE = (
    *("MESSAGE", "message", "log", "msg", "short_message", "line", "_msg", "text", "_raw"),
    *("textPayload", "SyslogMessage", "@message", "body", "Body"),  # Google, Azure, CloudWatch, OpenTelemetry
)
_HOST = ("_HOSTNAME", "host", "hostname", "node", "node_name", "HOSTNAME", "source_host", "syslog_hostname", "Computer")
_TIME = ("time", "@timestamp", "timestamp", "ts", "_time", "date", "timereported", "TimeGenerated")
_PROGRAM = (
    "SYSLOG_IDENTIFIER",
    "_COMM",
    "ident",
    "appname",
    "program",
    "syslog_identifier",
    "programname",
    "ProcessName",
)
_KERNEL = frozenset({"kernel", "kmsg", "dmesg", ""})
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)([.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)?")
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_ANSI = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


def plain(text: str) -> str:
    """`text` without colours and NULs."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\0", "") if "\0" in text else text


def unwrap(text: str, clock: Clock) -> Head | None:
    """The record inside one JSON object, None where it is none or has no message.

    A journal entry without a message (journalctl prints null for a long one) is a record that says nothing.
    """
    try:
        record = _decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return journal(record, clock) or Head("") if "MESSAGE" in record else _shipped(record, clock)


def journal(record: dict[str, Any], clock: Clock) -> Head | None:
    """A journal entry as a mapping of its fields (JSON or export format)."""
    message = _text(record.get("MESSAGE"))
    if message is None:
        return None
    transport, program = record.get("_TRANSPORT"), _first(record, _PROGRAM) or ""
    if transport == "kernel" or (transport is None and program in _KERNEL):
        head = Head(message)
    else:
        head = split(message, clock) if program in _KERNEL else Head(message)
        head.program, head.kernel = program, False
    head.node = _first(record, _HOST) or head.node
    head.pid = _integer(record.get("_PID"))
    at = _integer(record.get("__REALTIME_TIMESTAMP")) or _integer(record.get("_SOURCE_REALTIME_TIMESTAMP"))
    if at:
        head.at = at / 1e6
        clock.note(head.at)
    uptime = _integer(record.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    if uptime is not None and head.at and head.kernel:
        head.uptime = uptime / 1e6
        clock.joined(head.node, head.uptime, head.at)
    return head


def _shipped(record: dict[str, Any], clock: Clock) -> Head | None:
    message, inner = _first(record, _MESSAGE), record
    if message is None:
        nested = (value for value in record.values() if isinstance(value, dict))
        inner = next((value for value in nested if _first(value, _MESSAGE) is not None), record)
        message = _first(inner, _MESSAGE)
    if message is None:
        return None
    head = split(message.rstrip("\r\n"), clock)
    if not head.node:
        head.node = _first(record, _HOST) or _first(inner, _HOST) or _nested_host(record)
    program = _first(record, _PROGRAM) or ""
    if program not in _KERNEL:
        head.program, head.kernel = program, False
    # A line with kernel seconds may be a copy of an old one: when it was shipped says nothing about it.
    if not head.at and head.uptime is None:
        head.at = _time(record, clock)
    return head


def _time(record: dict[str, Any], clock: Clock) -> float:
    for name in _TIME:
        value = record.get(name)
        if isinstance(value, str) and (match := _ISO.match(value)):
            return clock.iso(match[1], match[2], match[3])
        if isinstance(value, int | float) and value > 0:
            at = _seconds(float(value))
            clock.note(at)
            return at
    return 0.0


def _seconds(value: float) -> float:
    """Unix seconds of a number that may be in milli-, micro- or nanoseconds."""
    while value > 1e11:
        value /= 1e3
    return value


def _nested_host(record: dict[str, Any]) -> str:
    for name in ("host", "kubernetes", "agent"):
        inner = record.get(name)
        if isinstance(inner, dict):
            found = inner.get("name") or inner.get("host") or inner.get("hostname")
            if isinstance(found, str):
                return found
    return ""


def _first(record: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):  # journald gives what is not printable UTF-8 as numbers, one a byte
        numbers = bytes(item for item in value if isinstance(item, int) and 0 <= item < 256)
        return plain(numbers.decode("utf-8", "replace"))
    return None


def _integer(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else None
