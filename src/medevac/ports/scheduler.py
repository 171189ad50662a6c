"""A scheduler: what runs jobs and owns the nodes. One Protocol, one contract suite, several backends."""

from __future__ import annotations

from typing import Protocol

from medevac.core.actions import (
    FinishJob,
    GiveBack,
    HoldJob,
    Isolate,
    ReleaseJob,
    Repair,
    RequestCheckpoint,
    Restrict,
    StartAttempt,
    StopAttempt,
)
from medevac.core.events import AnyEvent, ClusterSeen


class Scheduler(Protocol):
    """Each mutating call returns when the world was read back and shows the result, is idempotent by the action's
    id, and raises the errors of `ports.errors`. None of them decides anything.
    """

    name: str

    async def cluster(self) -> ClusterSeen:
        """All nodes and GPUs. Raises `Unavailable`, `BadReply`."""
        ...

    async def observe(self) -> tuple[AnyEvent, ...]:
        """What changed since the store last heard: attempts started and ended. Repeats are harmless (stable ids)."""
        ...

    async def isolated(self) -> dict[str, str]:
        """What is out now by our hand: GPU UUID (or node name) -> "soft" or "hard"."""
        ...

    async def isolate(self, action: Isolate) -> None: ...

    async def restrict(self, action: Restrict) -> None: ...

    async def repair(self, action: Repair) -> None:
        """Raises `OutcomeUnknown` until it is in service again, `Refused` where it does not come back."""
        ...

    async def give_back(self, action: GiveBack) -> None: ...

    async def start(self, action: StartAttempt) -> AnyEvent:
        """Start the attempt unless it was started already; returns its `AttemptStarted`."""
        ...

    async def stop(self, action: StopAttempt) -> AnyEvent | None:
        """End it; returns its `AttemptEnded` (None: no such attempt runs or ran)."""
        ...

    async def request_checkpoint(self, action: RequestCheckpoint) -> None: ...

    async def hold(self, action: HoldJob) -> None: ...

    async def release(self, action: ReleaseJob) -> None: ...

    async def finish(self, action: FinishJob) -> None:
        """No more attempt will be started: what our stop left waiting for one waits for a person from now on."""
        ...

    async def holds(self) -> dict[str, str]:
        """Jobs held by us now -> purpose ("recovery" or "person")."""
        ...
