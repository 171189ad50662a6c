"""Trying again what cannot be reached now: with growing pauses, for ever, and said once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import structlog

from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

T = TypeVar("T")
log = structlog.get_logger(__name__)


def pauses() -> Iterator[float]:
    """Seconds to wait before each next try."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


async def patiently(what: str, call: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The result of `call`, as soon as it can be had. Raises what `call` raises, `Unavailable` aside."""
    said = False
    for pause in pauses():
        try:
            return await call()
        except Unavailable as problem:
            if not said:
                log.warning("cannot be reached now, tried again until it can", what=what, problem=str(problem))
                said = True
        await clock.sleep(pause)
    raise AssertionError("pauses() has no end")
