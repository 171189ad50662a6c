"""The wall clock as a `ports.clock.Clock`, for sources that are given none."""

from __future__ import annotations

import asyncio
import time


class WallClock:
    """Real time."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
