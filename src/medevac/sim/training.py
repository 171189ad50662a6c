"""A training job that never ran: steps, checkpoints and corruption as numbers, in virtual time."""

from __future__ import annotations

import zlib
from collections.abc import Collection

import msgspec

from medevac.core.events import CheckpointSealed, RankPlace, SealRank, StepReported


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What lies on the disk of one checkpoint."""

    digest: int
    sound: bool
    sealed: CheckpointSealed


class Training:
    """Deterministic: the state after a step depends on the steps before it alone, at any world size.

    A corrupted GPU that takes part in a step spoils the state of all ranks with the next all-reduce.
    """

    def __init__(self, job: str, steps: int, save_every: int) -> None:
        self.job = job
        self.steps = steps
        self.save_every = save_every
        self.disk: dict[int, Saved] = {}
        self.attempt = 0
        self.ranks: tuple[RankPlace, ...] = ()
        self.step = 0
        self.digest = 0
        self.sound = True
        self.parent: int | None = None

    def load(self, attempt: int, ranks: tuple[RankPlace, ...], resume_from: int | None) -> None:
        """A new attempt begins from a checkpoint, or from nothing."""
        self.attempt, self.ranks, self.parent = attempt, ranks, resume_from
        self.step = resume_from or 0
        saved = self.disk[resume_from] if resume_from is not None else None
        self.digest, self.sound = (saved.digest, saved.sound) if saved else (0, True)

    def advance(self, now: float, corrupted: Collection[str]) -> tuple[StepReported | CheckpointSealed, ...]:
        """One step of all ranks, and the checkpoint that may come due with it."""
        self.step += 1
        self.digest = zlib.crc32(self.step.to_bytes(8, "big"), self.digest)
        hit = [place.rank for place in self.ranks if set(place.gpus) & set(corrupted)]
        reports = tuple(self._report(place, now, hit) for place in self.ranks)
        self.sound = self.sound and not hit
        due = self.step % self.save_every == 0 or self.step == self.steps
        return (*reports, self.save(now)) if due else reports

    def save(self, now: float) -> CheckpointSealed:
        """Seal a checkpoint of the present step."""
        ranks = tuple(
            SealRank(rank=place.rank, node=place.node, gpu_uuid=place.gpus[0] if place.gpus else "")
            for place in self.ranks
        )
        sealed = CheckpointSealed(
            at=now,
            id=f"{self.job}/step_{self.step:08d}/{self.attempt}",
            source="checkpoints",
            job=self.job,
            attempt=self.attempt,
            step=self.step,
            parent=self.parent,
            ranks=ranks,
        )
        self.disk[self.step] = Saved(digest=self.digest, sound=self.sound, sealed=sealed)
        self.parent = self.step
        return sealed

    def done(self) -> bool:
        """The last step was made."""
        return self.step >= self.steps

    def _report(self, place: RankPlace, now: float, hit: Collection[int]) -> StepReported:
        sound = self.sound and place.rank not in hit
        return StepReported(
            at=now,
            source="injob",
            job=self.job,
            attempt=self.attempt,
            step=self.step,
            rank=place.rank,
            loss=2.0 / self.step if sound else None,
            finite=sound,
        )
