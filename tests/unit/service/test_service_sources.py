"""What the service makes of its sources: history left out, a file's steps at their own times."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from medevac.controller.service import Recent, Speaks
from medevac.core.events import AnyEvent, FaultSeen, StepReported


class Told:
    """A source that says these events once."""

    name = "told"

    def __init__(self, *events: AnyEvent) -> None:
        self.events = events

    async def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        for number, event in enumerate(self.events):
            yield event, str(number)


async def test_a_fault_from_before_us_is_history() -> None:
    old, new = FaultSeen(at=99.0, kind="xid", code=79), FaultSeen(at=100.0, kind="xid", code=79)
    heard = [event async for event, _ in Recent(Told(old, new), since=100.0).follow("")]
    assert heard == [new]


@pytest.mark.parametrize(("at", "seen_at"), [(99.6, 99.6), (98.9, 100.0), (100.2, 100.0), (50.0, 100.0)])
async def test_a_step_counts_when_it_was_made_where_the_clocks_agree(at: float, seen_at: float) -> None:
    step = StepReported(at=at, seen_at=100.0, job="slurm-1", attempt=1, step=7)
    source = Speaks(Told(step))
    assert not source.heard
    ((event, _),) = [one async for one in source.follow("")]
    assert event.seen_at == seen_at
    assert source.heard


async def test_who_spoke_before_a_restart_speaks() -> None:
    source = Speaks(Told())
    assert [one async for one in source.follow("here")] == []
    assert source.heard
