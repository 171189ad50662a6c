"""A few floats a bucket tell which rank's gradients are unlike all others', before the optimizer has used them.

    watch = SketchWatch()
    guard = Guard(model, optimizer, checks=(watch,))

Each rank's sketch of a bucket: its norm, its largest magnitude, how many values are not finite, and `PROJECTIONS`
signed sums (each value with a sign by its position, the same on all ranks). One all-gather of `4 * (3 + PROJECTIONS)`
bytes a bucket and rank; the reduction itself stays as it is. Two questions are put to them:

    size        is one rank's norm or magnitude further from the middle rank's than ranks here ever are?
    direction   does one rank's gradient, over `WINDOW` steps, point against that of the others?

Ranks have data of their own, so they differ: the limit of the first is learned from how far the furthest rank was in
earlier steps (`FACTOR` times its median in log2, and at least a factor of `2 ** FLOOR`). A flipped low bit of a
mantissa moves none of this, and little else; `ReplicaCheck` and `GradientCrc` find it. Signed sums keep angles: Johnson
and Lindenstrauss, "Extensions of Lipschitz mappings into a Hilbert space" (1984); with random signs: Achlioptas,
"Database-friendly random projections" (PODS 2001).
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from medevac.torch.bridge import square, values_of
from medevac.torch.checks import Check, Finding, of_all_groups, reduced_by
from medevac.torch.links import Link

if TYPE_CHECKING:
    from medevac.torch.guard import Guard

PROJECTIONS = 4
EVERY = 8
"""Steps from look to look: a sketch costs about as much as a copy of the gradients (docs/gradients.md)."""
WARM_UP = 20
"""Looks before a limit is learned; until then only a factor of `2 ** EXTREME` counts."""
KEPT = 200
"""Looks from which the limit is learned."""
FACTOR, FLOOR, EXTREME = 8.0, 2.0, 20.0
WINDOW = 64
AGAINST, SURE = 0.2, 6.0
"""Over a window, a rank whose mean agreement with the others is so far below zero, and so many standard errors, while
theirs is as far above, points the other way."""
COLUMNS = 4096
NORM, LARGEST, ODD, SIGNED = 0, 1, 2, 3
TINY = 1e-30

Rows = Sequence[Sequence[Sequence[float]]]
"""Sketches by rank, bucket and place."""


class SketchWatch(Link, Check):
    """See the module. `want`: what follows a finding ("again": the second time in one step a roll-back). Ranks are
    those of DDP's process group, and are named from three on.
    """

    def __init__(self, every: int = EVERY, want: Literal["warn", "again", "roll-back", "replay"] = "warn") -> None:
        if every < 1:
            raise ValueError(f"every is {every}: give 1 or more steps")
        self.every, self._want = every, want
        self.judge = Judge()
        self._step = 0
        self._struck = -1
        self._mine: list[Tensor] = []
        self._group: dist.ProcessGroup | None = None
        self._ranks: list[int] = []

    def attach(self, guard: Guard) -> None:
        self._group, self._ranks = reduced_by(guard, "SketchWatch")

    def before(self, gradients: Tensor, index: int) -> None:
        if index == 0:
            self._mine = []  # an earlier micro-batch, or a step that was not taken
        if self._ranks and (self._step % self.every == 0 or self._step == self._struck):
            self._mine.append(sketch(gradients))

    def backward_done(self, step: int) -> Finding | None:
        mine, self._mine = self._mine, []
        self._step = step + 1
        if not mine:
            return None
        own = torch.stack(mine)
        rows = [torch.empty_like(own) for _ in self._ranks]
        dist.all_gather(rows, own, group=self._group)
        found = self.judge.look([row.tolist() for row in torch.stack(rows)])
        named = {self._ranks[at]: why for at, why in found.items()}
        unlike = {rank: why for one in of_all_groups(named, len(self._ranks)) for rank, why in one.items()}
        return self._finding(step, unlike) if unlike else None

    def _finding(self, step: int, unlike: dict[int, str]) -> Finding:
        want = self._want
        if want == "again":
            want = "roll-back" if self._struck == step else want
            self._step = self._struck = step
        who = "; ".join(f"rank {rank}: {why}" for rank, why in unlike.items())
        why = f"gradients of step {step} are unlike those of other ranks: {who}"
        return Finding(why=why, want=want, ranks=tuple(unlike))

    def restored(self, step: int) -> None:
        self._step, self._mine = step, []


class Judge:
    """Who stands out, from the sketches of all ranks, step by step. No torch: lists of floats in, words out."""

    def __init__(self) -> None:
        self._furthest: dict[int, deque[float]] = {NORM: deque(maxlen=KEPT), LARGEST: deque(maxlen=KEPT)}
        self._agreement: deque[list[float]] = deque(maxlen=WINDOW)

    def look(self, rows: Rows) -> dict[int, str]:
        """The ranks that stand out in this step, and why; none with fewer than three ranks."""
        if len(rows) < 3:
            return {}
        if any(bucket[ODD] or not math.isfinite(bucket[NORM]) for row in rows for bucket in row):
            return {}  # the bridge names who made them, and a GradScaler's are none of ours
        return self._of_size(rows) or self._of_direction(rows)

    def _of_size(self, rows: Rows) -> dict[int, str]:
        found: dict[int, str] = {}
        for place, name in ((NORM, "norm"), (LARGEST, "largest value")):
            far = [self._far(rows, rank, place) for rank in range(len(rows))]
            seen = self._furthest[place]
            limit = max(FLOOR, FACTOR * median(seen)) if len(seen) >= WARM_UP else EXTREME
            out = [rank for rank, distance in enumerate(far) if abs(distance) > limit]
            if len(out) * 2 >= len(rows):
                out = []
            found |= {rank: f"{name} {_times(far[rank])} the middle rank's" for rank in out}
            seen.append(max(abs(distance) for rank, distance in enumerate(far) if rank not in out))
        return found

    @staticmethod
    def _far(rows: Rows, rank: int, place: int) -> float:
        """The log2 of the ratio to the middle rank of those that have a gradient, in the bucket where it is furthest
        from 0. A rank may well have none: parameters that it has not used, rows that are all masked.
        """
        ratios = [0.0]
        for at, bucket in enumerate(rows[rank]):
            others = [row[at][place] for row in rows if row[at][place] > 0]
            if bucket[place] > 0 and len(others) > 2:
                ratios.append(math.log2(bucket[place]) - math.log2(median(others)))
        return max(ratios, key=abs)

    def _of_direction(self, rows: Rows) -> dict[int, str]:
        self._agreement.append(agreement(rows))
        if len(self._agreement) < WINDOW:
            return {}
        by_rank = list(zip(*self._agreement, strict=True))
        means = [fmean(each) for each in by_rank]
        sure = [SURE * stdev(each) / math.sqrt(WINDOW) for each in by_rank]
        out = [rank for rank, mean in enumerate(means) if mean < -max(AGAINST, sure[rank])]
        others = [mean for rank, mean in enumerate(means) if rank not in out]
        if not out or len(out) * 2 >= len(rows) or median(others) < AGAINST:
            return {}
        self._agreement.clear()
        return {rank: f"points against the others for {WINDOW} steps (cosine {means[rank]:.2f})" for rank in out}


def agreement(rows: Rows) -> list[float]:
    """For each rank the cosine of its signed sums with the middle of the others', coordinate by coordinate."""
    flat = [[value for bucket in row for value in bucket[SIGNED:]] for row in rows]
    middle_of = [
        [median(other[at] for rank, other in enumerate(flat) if rank != own) for at in range(len(flat[own]))]
        for own in range(len(flat))
    ]
    return [_cosine(own, middle) for own, middle in zip(flat, middle_of, strict=True)]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    size = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / size if size > TINY and math.isfinite(size) else 0.0


def _times(log_ratio: float) -> str:
    return f"{2 ** abs(log_ratio):.3g} times" if log_ratio > 0 else f"1/{2 ** abs(log_ratio):.3g} of"


@torch.no_grad()
def sketch(gradients: Tensor) -> Tensor:
    """[3 + PROJECTIONS] float32 of one flat bucket: norm, largest magnitude, values not finite, signed sums.

    Where values are not finite the rest is of those that are.
    """
    flat = values_of(gradients.detach()).reshape(-1)
    flat = flat if flat.dtype is torch.float32 else flat.float()
    squares = None if flat.is_cuda else square(flat)  # on a GPU nothing is waited for
    odd = flat.new_zeros(())
    if squares is None or not torch.isfinite(squares):
        finite = torch.isfinite(flat)
        odd = (~finite).sum().float()
        flat = torch.where(finite, flat, 0.0)
        squares = square(flat)
    low, high = torch.aminmax(flat) if len(flat) else (odd, odd)
    sizes = torch.stack((squares.sqrt().float(), torch.maximum(-low, high), odd))
    return torch.cat((sizes, signed_sums(flat)))


def signed_sums(flat: Tensor) -> Tensor:
    """[PROJECTIONS]: sums with random signs. The sign of a value is that of its column times that of its row."""
    columns = min(COLUMNS, max(len(flat), 1))
    whole = len(flat) // columns
    by_column = signs(columns * PROJECTIONS, flat.device).view(PROJECTIONS, columns)
    by_row = signs((whole + 1) * PROJECTIONS, flat.device).view(whole + 1, PROJECTIONS)
    found = ((flat[: whole * columns].view(whole, columns) @ by_column.T) * by_row[:whole]).sum(0)
    rest = flat[whole * columns :]
    return found + (by_column[:, : len(rest)] @ rest) * by_row[whole] if len(rest) else found


@functools.lru_cache(maxsize=64)
def signs(count: int, device: torch.device) -> Tensor:
    """So many of +1 and -1, the same everywhere."""
    drawn = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.float32)
    return (drawn * 2 - 1).to(device)
