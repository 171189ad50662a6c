"""Several ways to tell a person, all of them tried."""

from __future__ import annotations

from collections.abc import Sequence

from medevac.core.actions import Page
from medevac.ports.errors import Unavailable
from medevac.ports.notifier import Notifier


class SeveralNotifiers:
    """Pages through each; raises `Unavailable` only when none could tell anybody."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        self._notifiers = tuple(notifiers)

    async def page(self, action: Page) -> None:
        problems = []
        for notifier in self._notifiers:
            try:
                await notifier.page(action)
            except Unavailable as problem:
                problems.append(str(problem))
        if len(problems) == len(self._notifiers):
            raise Unavailable("; ".join(problems) or "no notifier is configured")
