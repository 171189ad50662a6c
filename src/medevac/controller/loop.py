"""The controller's loop: follow the log, decide, write down, hand over to whoever performs.

Nothing else decides, and nothing is kept here that the log does not hold: killed at any point, the next controller
reads the same log and goes on where this one stood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from medevac.controller.patience import patiently
from medevac.controller.step import advance, refold
from medevac.core.actions import AnyAction
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.clock import Clock
from medevac.ports.store import EventRecord, Record, Store

AT_ONCE = 200
"""Records read in one go."""

LOOK_S = 1.0
"""How long one wait for news lasts."""

Perform = Callable[[AnyAction], None]


class Loop:
    """One controller's view of the log. `grown` is set whenever the view has changed."""

    def __init__(self, store: Store, policy: Policy, perform: Perform, clock: Clock) -> None:
        self.view = View.under(policy)
        self.grown = asyncio.Event()
        self.cursor = 0
        self._store = store
        self._policy = policy
        self._perform = perform
        self._clock = clock

    async def restore(self) -> tuple[AnyAction, ...]:
        """Rebuild the view from what was recorded; returns the actions that are not settled, in the order they were
        ordered. Events that came after the last decision are left to `run`: they may never have been decided on.
        """
        records = await self._everything()
        decided = max((record.decision.cause for record in records if not isinstance(record, EventRecord)), default=0)
        known = [record for record in records if not isinstance(record, EventRecord) or record.seq <= decided]
        ordered: list[AnyAction] = []
        for view, _, decision in refold(self.view, known):
            self.view = view
            ordered += decision.actions if decision else ()
        self.cursor = decided
        last = {action.id: action for action in ordered}
        return tuple(action for action in last.values() if action.id in self.view.pending)

    async def run(self) -> None:
        """For ever."""
        while True:
            records = await patiently(
                "store", lambda: self._store.records(after=self.cursor, limit=AT_ONCE), self._clock
            )
            for record in records:
                if isinstance(record, EventRecord):
                    await self.take(record)
                self.cursor = record.seq
            if not records:
                await patiently("store", lambda: self._store.wait(self.cursor, LOOK_S), self._clock)

    async def take(self, record: EventRecord) -> None:
        """One event: decide on it, write the decision down, and only then have it done."""
        view, decision = advance(self.view, record, self._policy)
        if not decision.empty():
            await patiently("store", lambda: self._store.append_decision(decision), self._clock)
        self.view = view
        self.grown.set()
        for action in decision.actions:
            self._perform(action)

    async def _everything(self) -> list[Record]:
        found: list[Record] = []
        while True:
            last = found[-1].seq if found else 0
            more = await patiently("store", partial(self._store.records, after=last), self._clock)
            if not more:
                return found
            found += more
