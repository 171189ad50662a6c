"""A job's checkpoint folder (DESIGN 5a): seals, verdicts, the pointer to the clean one."""

from __future__ import annotations

from typing import Protocol

from medevac.core.actions import JudgeCheckpoint, PointClean, VerifyCheckpoint
from medevac.core.events import AnyEvent, CheckpointVerified


class Checkpoints(Protocol):
    """Idempotent; raises `Unavailable` when the folder cannot be reached or is full, `Refused` for a step that is
    not there.
    """

    async def scan(self, job: str, folder: str) -> tuple[AnyEvent, ...]:
        """CheckpointSealed, CheckpointFound and CheckpointJudged events of what stands there now (stable ids)."""
        ...

    async def verify(self, action: VerifyCheckpoint, folder: str) -> CheckpointVerified: ...

    async def judge(self, action: JudgeCheckpoint, folder: str) -> None:
        """Append the verdict, unless the last one on that step says the same."""
        ...

    async def point(self, action: PointClean, folder: str) -> None:
        """`latest_clean` -> `step_<8 digits>`, replaced by rename; no link where the step is None."""
        ...

    async def pointed(self, folder: str) -> int | None:
        """The step that `latest_clean` points to, None for none."""
        ...

    async def judged(self, folder: str) -> dict[int, str]:
        """The last verdict per step in the lineage file."""
        ...
