"""Kill points: SIGKILL to the controller right before or after a call of a port, for the tests of what survives it.

    MEDEVAC_KILL_AT="scheduler.start:after"       at each first time that an attempt is started
    MEDEVAC_KILL_AT="store.append_events:before"  at each first time that a kind of event is written

Each point kills once for each distinct thing that is done (an action's id, a decision's id, a kind of event): a mark
in the state folder says that it has, so that the controller which comes next gets past it. Without the variable ports
are used as they are.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import xxhash

VARIABLE = "MEDEVAC_KILL_AT"
When = Literal["before", "after"]
T = TypeVar("T")

MUTATING: dict[str, tuple[str, ...]] = {
    "scheduler": ("isolate", "give_back", "start", "stop", "request_checkpoint", "hold", "release", "finish"),
    "checkpoints": ("verify", "judge", "point"),
    "store": ("append_events", "append_decision"),
    "notifier": ("page",),
}
"""The calls of each port that change something, or whose result is recorded: each has a kill test."""

OF_CLUSTERS: dict[str, tuple[str, ...]] = {
    "scheduler": ("restrict", "repair"),
    "checkpoints": (),
    "store": (),
    "notifier": (),
}
"""Calls that change something and that one machine's scheduler cannot do: no scenario there comes to them."""

READING: dict[str, tuple[str, ...]] = {
    "scheduler": ("cluster", "observe", "isolated", "holds"),
    "checkpoints": ("scan", "pointed", "judged"),
    "store": ("records", "wait", "cursor", "close"),
    "notifier": (),
}
"""The calls that only look: killed there, a controller has done nothing."""


def points() -> tuple[str, ...]:
    """Every point there is, as the variable takes it."""
    calls = (f"{port}.{name}" for port, names in MUTATING.items() for name in names)
    return tuple(f"{call}:{when}" for call in calls for when in ("before", "after"))


def marks(state: Path) -> list[Path]:
    """Where a controller of this state folder was killed so far."""
    return sorted((state / "killed").glob("*"))


def armed(name: str, port: T, state: Path) -> T:
    """The port, which kills this process at the point that the environment names."""
    wanted, _, when = os.environ.get(VARIABLE, "").partition(":")
    owner, _, method = wanted.partition(".")
    if owner != name:
        return port
    if method not in MUTATING[name] or when not in {"before", "after"}:
        raise ValueError(f"{VARIABLE}: {wanted}:{when}: no such point; there are {', '.join(points())}")
    return cast("T", _Armed(port, method, cast("When", when), state / "killed"))


class _Armed:
    """Passes everything on, and one method with a kill around it."""

    def __init__(self, port: object, method: str, when: When, folder: Path) -> None:
        self._port = port
        self._method = method
        self._when = when
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        return self._around(found) if name == self._method else found

    def _around(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def killing(*given: object, **named: object) -> object:
            if self._when == "before":
                self._kill(given[0])
            result = await call(*given, **named)
            if self._when == "after":
                self._kill(given[0])
            return result

        return killing

    def _kill(self, given: object) -> None:
        """Once for each mark."""
        for mark in _marks(given):
            path = self._folder / f"{self._method}-{self._when}-{xxhash.xxh3_64_hexdigest(mark.encode())}"
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{mark}\n")
                os.kill(os.getpid(), signal.SIGKILL)


def _marks(given: object) -> list[str]:
    """What tells one call from another: an id, or of events their kinds, and whose outcome they tell."""
    if isinstance(given, tuple | list):
        return [f"{type(event).__name__} {getattr(event, 'action', '')}" for event in given]
    return [str(getattr(given, "id", ""))]
