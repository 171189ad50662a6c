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
        mending = {part for a in view.pending.values() if isinstance(a, Repair) for part in (a.gpu, a.node)}
        gone = {
            name
            for name in self._seen - set(out) - mending
            if view.device(name).state in SETTLED and view.device(name).node not in mending
        }
        given, self._missing = gone & self._missing, gone
        self._seen = (self._seen & gone) | set(out)
        self._seen -= given
        return tuple(
            OrderGiven(at=now, id=f"{name}/resumed/{view.device(name).since:.3f}", what="return", target=name, who=BY)
            for name in sorted(given)
        )
