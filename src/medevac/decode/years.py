"""Syslog dates say no year. What a later line of the same log tells about it, the events before it are given too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.readers import Unreadable

HELD = 4096
"""Events that wait for a date with a year, at most; then the year is what the age of the file says."""


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
