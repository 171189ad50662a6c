"""Syslog dates say no year. What a later line of the same log tells about it, the events before it are given too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from medevac.core.events import FaultSeen
from medevac.decode.clock import epoch, month_number
from medevac.decode.context import Context
from medevac.decode.readers import Unreadable

HEAD = 4096
"""Bytes at the beginning of a log in which a bug report says when it was made."""
_REPORT = re.compile(rb"^Date: ([^\n]{12,60})$", re.MULTILINE)
HELD = 4096
"""Events that wait for a date with a year, at most; then the year is what the age of the file says."""


def report_date(head: bytes) -> float:
    """When `nvidia-bug-report.sh` wrote the report that begins with `head` (`date` in any locale), 0.0 for none."""
    match = _REPORT.search(head) if b"NVIDIA bug report" in head else None
    words = match[1].decode("utf-8", "replace").replace(",", " ").replace(".", " ").split() if match else []
    year = next((int(word) for word in words if len(word) == 4 and word.isdecimal()), 0)
    months = [number for word in words if (number := month_number(word))]  # mar. juin: a French Tuesday
    month = months[-1] if months else 0
    day = next((int(word) for word in words if len(word) <= 2 and word.isdecimal()), 0)
    return epoch(year, month, day) if year and month and day else 0.0


def settled(events: Iterator[FaultSeen], ctx: Context) -> Iterator[FaultSeen]:
    """The same events in the same order; those whose year was a guess wait for a line that shows one."""
    held: list[FaultSeen] = []
    try:
        for event in events:
            held.append(event)
            if len(held) >= HELD or ctx.dated_from or not ctx.clock.guessed:
                yield from _told(held, ctx)
                held.clear()
            if ctx.dated_from and event.line >= ctx.dated_from:
                break
    except (OSError, EOFError, Unreadable):
        yield from _told(held, ctx)
        raise
    yield from _told(held, ctx)
    yield from events


def _told(held: Iterable[FaultSeen], ctx: Context) -> Iterator[FaultSeen]:
    clock = ctx.clock
    for event in held:
        if event.at and clock.guessed and event.line < ctx.dated_from:
            yield msgspec.structs.replace(event, at=clock.again(event.at))
        else:
            yield event
