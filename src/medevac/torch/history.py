"""The checkpoints behind a training: which to begin from, which are in doubt, and the way back to a clean one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch.distributed as dist

from medevac.client import Client
from medevac.core.seal import step_of
from medevac.torch import lineage
from medevac.torch.checkpoints import CheckpointManager
from medevac.torch.place import Place
from medevac.torch.saver import sweep
from medevac.torch.stop import ROLL_BACK, SUSPECT, Stop

log = logging.getLogger("medevac.torch")


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """Where the training goes on: after `step` steps, from `path` (None: from nothing)."""

    step: int = 0
    path: Path | None = None


class History:
    """What can be gone back to. All methods on all ranks together, but for `doubt(..., anyone=True)`."""

    def __init__(self, checkpoints: CheckpointManager | None, place: Place, client: Client, limit: int) -> None:
        self.checkpoints = checkpoints
        self._place, self._client, self._limit = place, client, limit
        self._rolled: list[tuple[int, int]] = []

    @property
    def may_roll_back(self) -> bool:
        return self.checkpoints is not None and len(self._rolled) < self._limit

    def resume(self) -> Resumed:
        """Load what Medevac names; without Medevac the newest clean checkpoint that is as it was sealed.

        One without a seal is loaded only where Medevac names it, which it does on an operator's order, or where the
        job's policy has lineage = "none".
        Raises `Stop` (86) when what Medevac named is not what was sealed.
        """
        if self._place.rank == 0 and self.checkpoints:
            sweep(self.checkpoints.folder)
        while path := self._agreed(self._wanted):
            assert self.checkpoints
            problem = self._verified(path)
            if not problem or self._unsealed(path):
                return Resumed(step=self.checkpoints.load(path), path=path)
            self.doubt([step_of(path.name) or 0], "condemned", problem)
            if self._ordered:
                raise Stop(SUSPECT, f"{path} was to be loaded: {problem}")
        return Resumed()

    @property
    def _ordered(self) -> bool:
        """Medevac says what to load, for this attempt's first start: a launcher's own restart is after that."""
        first = bool(self._client.job) and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        return first and (self._client.resume_from is not None or not self._free)

    @property
    def _free(self) -> bool:
        """The job's policy has lineage = "none": the newest checkpoint is taken, sealed or not."""
        return bool(self._client.job) and os.environ.get("MEDEVAC_LINEAGE") == "none"

    def _unsealed(self, path: Path) -> bool:
        """It may be loaded without a seal to compare with, and has none. A seal that is torn is not missing."""
        if not (self._ordered or self._free):
            return False
        missing = self._agreed(lambda: path if path.is_dir() and lineage.unsealed(path) else None) is not None
        if missing and self._place.rank == 0:
            log.warning("%s has no seal: it is loaded by order, or by the job's policy, and nothing is compared", path)
        return missing

    def _wanted(self) -> Path | None:
        if self._ordered:
            return self._client.resume_from
        if self._free and self.checkpoints:
            return lineage.newest_of_any(self.checkpoints.folder)
        return self.checkpoints.newest_clean() if self.checkpoints else None

    def _agreed(self, choose: Callable[[], Path | None]) -> Path | None:
        """Rank 0's choice, on all ranks. Raises `Stop` (85) on all of them where the folder cannot be read now."""
        chosen: list[Any] = [None, ""]
        if self._place.rank == 0:
            try:
                chosen[0] = choose()
            except OSError as problem:
                chosen[1] = f"{problem.filename}: {problem.strerror}"
        if self._place.world > 1:
            dist.broadcast_object_list(chosen, src=0)
        if chosen[1]:
            raise Stop(ROLL_BACK, f"it cannot be known which checkpoint is clean: {chosen[1]}")
        path: Path | None = chosen[0]
        return path

    def _verified(self, path: Path) -> str:
        """What is wrong with it. Raises `Stop` (85): what cannot be read now is not wrong, and nothing is loaded."""
        assert self.checkpoints
        try:
            return self.checkpoints.verify(path)
        except OSError as problem:
            raise Stop(ROLL_BACK, f"{path} cannot be read: {problem}") from problem

    def roll_back(self, bad_step: int, why: str) -> int:
        """Put the newest clean checkpoint from before `bad_step` was taken back in place; returns its step.

        Raises `Stop` (85) where there is none.
        """
        assert self.checkpoints
        self.checkpoints.wait()
        self._judge_newest(bad_step)
        while True:
            path = self._agreed(lambda: self.checkpoints.newest_clean(bad_step + 1) if self.checkpoints else None)
            if path is None:
                raise Stop(ROLL_BACK, f"{why}, and there is no clean checkpoint to go back to")
            problem = self._verified(path)
            if not problem:
                break
            self.doubt([step_of(path.name) or 0], "condemned", problem)
        step = self.checkpoints.load(path)
        self._rolled.append((bad_step, step))
        if self._place.rank == 0:
            log.error("rolled back from step %d to the checkpoint of step %d", bad_step, step)
        return step

    def _judge_newest(self, bad_step: int) -> None:
        """A checkpoint that has led to this step twice is in doubt, and so is one of a state that is not finite."""
        assert self.checkpoints
        finite: list[Any] = [self.checkpoints.state.finite()] * self._place.world
        if self._place.world > 1:
            dist.all_gather_object(finite, finite[0])
        if not all(finite):
            ranks = ", ".join(str(rank) for rank, ok in enumerate(finite) if not ok)
            newer = [known.step for known in self.known() if known.step >= bad_step]
            self.doubt(newer, "condemned", f"the state of rank {ranks} was not finite at step {bad_step}")
        elif self._rolled and self._rolled[-1][0] == bad_step:
            self.doubt([self._rolled[-1][1]], "suspect", f"step {bad_step} was bad again after it")

    def known(self) -> list[lineage.Known]:
        with suppress(OSError):
            return lineage.survey(self.checkpoints.folder) if self.checkpoints else []
        return []

    def doubt_after(self, step: int, state: Literal["suspect", "condemned"], why: str) -> None:
        """Write a verdict on every checkpoint later than `step`, those being written included."""
        if self.checkpoints:
            self.checkpoints.wait()
            self.doubt([one.step for one in self.known() if one.step > step], state, why)

    def prove(self, step: int, why: str) -> None:
        """A suspect checkpoint of `step` is clean after all, and `why`; nothing makes a condemned one clean."""
        doubted = [one.step for one in self.known() if one.step == step and one.state == "suspect"]
        if self.checkpoints and doubted and self._place.rank == 0:
            with suppress(OSError):
                lineage.judge(self.checkpoints.folder, doubted, "clean", why)

    def doubt(
        self, steps: Sequence[int], state: Literal["suspect", "condemned"], why: str, *, anyone: bool = False
    ) -> None:
        """Write a verdict: rank 0 for all, or whoever knows."""
        if self.checkpoints and steps and (anyone or self._place.rank == 0):
            with suppress(OSError):
                lineage.judge(self.checkpoints.folder, steps, state, why)
            log.error("checkpoint of step %s is %s: %s", ", ".join(map(str, steps)), state, why)
        if self._place.world > 1 and not anyone:
            dist.barrier()
