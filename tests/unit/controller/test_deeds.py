"""What is read back of an order before it is done again."""

from __future__ import annotations

from typing import Any

from medevac.adapters.clock import SystemClock
from medevac.adapters.schedulers.memory import MemoryScheduler, MemoryWorld
from medevac.controller.deeds import Deeds
from medevac.core.actions import GiveBack

UNASKED: Any = None


async def test_a_restriction_given_back_is_not_done_because_nothing_is_isolated() -> None:
    """Restricted parts are in service: after a lost answer the order is given again."""
    scheduler = MemoryScheduler(MemoryWorld(()))
    deeds = Deeds(scheduler, UNASKED, UNASKED, UNASKED, UNASKED, SystemClock())
    assert await scheduler.isolated() == {}
    assert await deeds.seen(GiveBack(id="back", node="n0", gpu="g00")) is None
