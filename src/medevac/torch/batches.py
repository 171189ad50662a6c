"""The same samples in the same order, whatever the number of ranks: for a training that shrinks and grows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist


class GlobalBatches:
    """Which samples this rank takes in a step. A function of the step alone, so a restart keeps the order.

        batches = GlobalBatches(len(dataset), batch=64)
        for step in guard.steps(state.step, total):
            rows = [dataset[i] for i in batches(step)]
            loss = batches.share(step) * compute_loss(model, rows)      # the mean over this rank's rows

    `samples` are shuffled by `seed` anew for each epoch, whose last, incomplete batch is left out. `batch` is the
    global one; where the ranks do not divide it some take one sample more, and `share` weighs a rank's mean so that
    DDP's (and FSDP's) average over ranks is the mean over the global batch.
    """

    def __init__(
        self, samples: int, batch: int, *, seed: int = 0, shuffle: bool = True, rank: int | None = None, world: int = 0
    ) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else int(os.environ.get("RANK", "0"))
        self.world = world or (dist.get_world_size() if grouped else int(os.environ.get("WORLD_SIZE", "1")))
        if not self.world <= batch <= samples:
            raise ValueError(f"batch {batch}: must be at least the {self.world} ranks and at most {samples} samples")
        self.samples, self.batch = samples, batch
        self._seed, self._shuffle = seed, shuffle
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)
        self._begin, self._end = (batch * one // self.world for one in (self.rank, self.rank + 1))

    def whole(self, step: int) -> list[int]:
        """The samples of all ranks in step `step`."""
        epoch, at = divmod(step, self.samples // self.batch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % (1 << 63))
            shuffled = torch.randperm(self.samples, generator=generator) if self._shuffle else None
            self._epoch, self._order = epoch, torch.arange(self.samples) if shuffled is None else shuffled
        found: list[int] = self._order[at * self.batch : (at + 1) * self.batch].tolist()
        return found

    def __call__(self, step: int) -> list[int]:
        """The samples of this rank: a stretch of the global batch, by rank."""
        return self.whole(step)[self._begin : self._end]

    def share(self, step: int) -> float:
        """What this rank's mean loss is multiplied with: 1.0 where all ranks have as many samples."""
        return (self._end - self._begin) * self.world / self.batch

    def follow(self, step: int) -> Iterator[list[int]]:
        """This rank's samples from `step` on, without end: a `batch_sampler` for a DataLoader. Make it anew after a
        restart or a roll-back.
        """
        while True:
            yield self(step)
            step += 1
