"""Gradients changed while nobody computes with them: a CRC at each hand-over point says where, and on which rank.

    crc = GradientCrc()
    guard = Guard(model, optimizer, checks=(crc,))

In every `every`-th micro-batch that DDP reduces, three pairs of bytes must be equal:

    this rank's bucket when it is ready   and   as the reduction takes it       (after all links have seen it)
    the reduced bucket on one rank        and   on every other
    the reduced bucket at the hook        and   `.grad` as the optimizer finds it

One all-gather of 24 bytes a rank tells all ranks. Nothing has used the gradients then: they are dropped, and the step
is done again from the state as it stands. Where a rank is wrong in the same step once more it leaves, its hardware
suspect.

CRC-32 finds every burst of up to 32 bits, and misses one of 4 billion other changes. With CUDA the same bytes go
through `replica_hash`, since a CRC is serial. What was wrong before the bucket was ready is not seen here, nor what
happens between two looks: `ReplicaCheck` and `SketchWatch` see those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from medevac.torch.bridge import values_of
from medevac.torch.checks import Check, Finding, minority, of_all_groups, reduced_by
from medevac.torch.links import Link
from medevac.torch.replica_hash import on_device

if TYPE_CHECKING:
    from medevac.torch.guard import Guard

try:  # the same CRC by the processor's own instruction: 3.8 times the rate (docs/gradients.md)
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

EVERY = 16
"""Micro-batches from look to look: under 3 % of a step's time on a CPU (docs/gradients.md)."""
LAUNCH, CHANGED = 1, 2
"""Bits of a rank's word: its bucket was another when it was sent; its `.grad` is not what the hook gave."""


class Digests:
    """What one micro-batch's buckets were at each point, by bucket."""

    def __init__(self) -> None:
        self.ready: dict[int, Tensor] = {}
        self.sent: dict[int, Tensor] = {}
        self.result: dict[int, Tensor] = {}
        self.parameters: dict[int, list[Tensor]] = {}


class GradientCrc(Link, Check):
    """See the module. `want`: what follows the first time, "again" (the step is done again), or "roll-back"."""

    watches_after = True

    def __init__(self, every: int = EVERY, want: Literal["again", "roll-back", "warn"] = "again") -> None:
        if every < 1:
            raise ValueError(f"every is {every}: give 1 or more micro-batches")
        self.every, self._want = every, want
        self._count = 0
        self._now: Digests | None = None
        self._open: list[Digests] = []
        self._group: dist.ProcessGroup | None = None
        self._ranks: list[int] = []
        self._struck: tuple[int, tuple[int, ...]] = (-1, ())

    def attach(self, guard: Guard) -> None:
        self._group, self._ranks = reduced_by(guard, "GradientCrc")

    # --- hand-over points -------------------------------------------------------------------------------------------

    def before(self, gradients: Tensor, index: int) -> None:
        if not self._ranks:
            return
        if index == 0:
            self._count += 1
            self._now = Digests() if self._count % self.every == 0 else None
            self._open += [self._now] if self._now else []
        if self._now:
            self._now.ready[index] = digest([gradients])

    def launch(self, bucket: GradBucket) -> None:
        if self._now:
            self._now.sent[bucket.index()] = digest([bucket.buffer()])
            self._now.parameters[bucket.index()] = bucket.parameters()

    def after(self, gradients: Tensor, index: int) -> None:
        if self._now:
            self._now.result[index] = digest([gradients])

    # --- comparing --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def backward_done(self, step: int) -> Finding | None:
        looked, self._open = self._open, []
        if not looked:
            return None
        last, self._now = self._now, None
        row = _row(looked, last)
        rows = [torch.empty_like(row) for _ in self._ranks]
        dist.all_gather(rows, row, group=self._group)
        where, wrong = judged([tuple(one.tolist()) for one in rows])
        own = where, tuple(self._ranks[at] for at in wrong)
        found = dict.fromkeys(one for one in of_all_groups(own, len(self._ranks)) if one[0])
        return self._finding(step, *next(iter(found))) if found else None

    def _finding(self, step: int, where: str, wrong: tuple[int, ...]) -> Finding:
        again = self._struck[0] == step
        lasting = tuple(rank for rank in wrong if again and rank in self._struck[1])
        self._struck = (step, wrong)
        who = f"rank {', '.join(map(str, wrong))}" if wrong else "which rank cannot be told: no majority"
        why = f"gradients of step {step} changed {where}: {who}"
        if lasting:
            return Finding(why=f"{why}; not for the first time", want="stop", ranks=lasting)
        return Finding(why=why, want="roll-back" if again and self._want == "again" else self._want, ranks=wrong)


def _row(looked: Sequence[Digests], last: Digests | None) -> Tensor:
    """Three int64: a rank's word, the digest of its results, and that of the gradients it is about to use."""
    launched = torch.stack([(one.ready[at] != one.sent[at]) for one in looked for at in sorted(one.sent)]).any()
    results = [_folded([one.result[at] for at in sorted(one.result)]) for one in looked]
    word = LAUNCH * launched.long()
    now, used = last or Digests(), dict[int, Tensor]()
    for at, parameters in sorted(now.parameters.items()):
        if at in now.result and (value := _used(parameters)) is not None:
            used[at] = value
    if used:
        word = word + CHANGED * torch.stack([value != now.result[at] for at, value in used.items()]).any().long()
    return torch.stack((word, _folded(results), _folded(list(used.values())) if used else torch.zeros_like(word)))


def judged(rows: Sequence[tuple[int, ...]]) -> tuple[str, list[int]]:
    """Where gradients changed, and on whose side: from each rank's word, result and used gradients.

    A loop that clips or unscales changes all ranks' gradients between hook and optimizer: they still agree then.
    """
    if launch := [at for at, row in enumerate(rows) if row[0] & LAUNCH]:
        return "between the bucket being ready and its reduction", launch
    if len({row[1] for row in rows}) > 1:
        return "in the reduction: its result is not the same on all ranks", minority([row[1] for row in rows])
    if len({row[2] for row in rows}) > 1:
        changed = [at for at, row in enumerate(rows) if row[0] & CHANGED]
        alone = changed if len(changed) * 2 <= len(rows) else minority([row[2] for row in rows])
        return "between the reduction and the optimizer", alone
    return "", []


def _used(parameters: Sequence[Tensor]) -> Tensor | None:
    """The digest of a bucket's gradients where the optimizer finds them; None where one has none."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return digest(gradients) if len(gradients) == len(parameters) else None


def _folded(digests: Sequence[Tensor]) -> Tensor:
    """One digest of several, in their order."""
    whole = torch.zeros_like(digests[0])
    for one in digests:
        whole = whole * 0x5851_F42D_4C95_7F2D + one  # an odd factor: a change of one of them always shows
    return whole


def digest(tensors: Sequence[Tensor]) -> Tensor:
    """The digest of some tensors' memory, one after the other, as an int64 where they are."""
    flat = [in_memory(tensor).view(torch.uint8) for tensor in tensors]
    if flat[0].device.type != "cpu":
        return on_device(torch.cat(flat) if len(flat) > 1 else flat[0])
    value = 0
    for data in flat:
        value = crc32(data.numpy(), value)
    return torch.tensor(value)


def in_memory(tensor: Tensor) -> Tensor:
    """A tensor's elements in the order of its memory, which is that of its bucket; a copy where it has gaps."""
    plain = values_of(tensor.detach())
    if plain.is_contiguous():
        return plain.view(-1)
    dense = torch.ops.aten.is_non_overlapping_and_dense(plain)
    return plain.as_strided((plain.numel(),), (1,)) if dense else plain.contiguous().view(-1)
