"""What a person has put back in service at the scheduler itself, without a word to us: their order stands (law 11)."""

from __future__ import annotations

from collections.abc import Collection

from medevac.core.actions import Repair
from medevac.core.events import OrderGiven
from medevac.core.view import View

SETTLED = ("soft-drained", "isolated")
BY = "a person, at the scheduler"


class Resumed:
    """Told at each look what is out by our hand; what was and is not any more, twice, is an order to give it back.

    A drain that a person made before us was never out by our hand, and a reboot takes ours off by itself.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._missing: set[str] = set()

    def look(self, view: View, out: Collection[str], now: float) -> tuple[OrderGiven, ...]:
        """The orders that follow; `out`: GPUs by UUID, and nodes by name."""
        mending = {action.node for action in view.pending.values() if isinstance(action, Repair)}
        missing = [view.device(name) for name in self._seen - set(out)]
        gone = {one.name for one in missing if one.state in SETTLED and one.node not in mending}
        given, self._missing = gone & self._missing, gone
        self._seen = (gone - given) | set(out)
        return tuple(
            OrderGiven(at=now, id=f"{name}/resumed/{view.device(name).since:.3f}", what="return", target=name, who=BY)
            for name in sorted(given)
        )
