"""Time, as something that a simulation can turn."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Unix seconds in UTC, and waiting for them."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...
