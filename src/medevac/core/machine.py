"""A state machine as one table of transitions."""

from __future__ import annotations

from collections.abc import Iterable

from medevac.core.decision import Struct


class Transition(Struct, frozen=True, kw_only=True):
    """In `source`, when `on` comes: go to `target` and do `act` (a name that recovery gives a meaning to)."""

    source: str
    on: str
    target: str
    act: str = ""
    says: str = ""


class Machine(Struct, frozen=True, kw_only=True):
    """A table with its first and its last states."""

    name: str
    initial: str
    final: tuple[str, ...]
    table: tuple[Transition, ...]

    def step(self, state: str, on: str) -> Transition | None:
        """The transition of `state` on `on`; None where it means nothing there."""
        return next((t for t in self.table if t.source == state and t.on == on), None)

    def states(self) -> tuple[str, ...]:
        """All states in the order of the table."""
        names = [self.initial, *(name for t in self.table for name in (t.source, t.target))]
        return tuple(dict.fromkeys(names))


def rows(sources: Iterable[str], on: str, target: str, act: str = "", says: str = "") -> tuple[Transition, ...]:
    """The same transition from several states."""
    return tuple(Transition(source=source, on=on, target=target, act=act, says=says) for source in sources)
