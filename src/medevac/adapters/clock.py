"""The clock of a controller: wall time that goes on evenly, whatever is done to the machine's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class SystemClock:
    """Unix seconds, anchored once and counted on by the monotonic clock: never back, never with a jump.

    `floor` is a time that it begins no earlier than: a log's newest, when a controller takes over after the wall
    clock was set back.
    """

    def __init__(
        self,
        floor: float = 0.0,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._offset = max(wall(), floor) - monotonic()

    def now(self) -> float:
        return self._offset + self._monotonic()

    def at_least(self, floor: float) -> None:
        """Go on from `floor` where that is later than now."""
        self._offset += max(0.0, floor - self.now())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
