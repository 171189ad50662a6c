"""Where more than the bridge looks at a training: checks of the state, and what they may find.

    class Agreement(Check):
        def end_step(self, done: int) -> Finding | None:
            ...                                             # communicate; the answer is then the same on all ranks
            return Finding(why="replicas differ in layer.3.weight", ranks=(5,), since=self.proven)

    guard = Guard(model, optimizer, checks=(Agreement(),))

The Guard adds no communication of its own: what a check returns must follow from what the check itself has sent around,
so that all ranks return the same. One that only this rank knows is `alone`: this rank then warns or ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from medevac.torch.stop import HARDWARE

if TYPE_CHECKING:
    from medevac.torch.guard import Guard

log = logging.getLogger("medevac.torch")

Found = TypeVar("Found")

Want: TypeAlias = Literal["warn", "skip", "again", "roll-back", "replay", "stop"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found, in words, and what it wants done about it.

    "warn": a line, the training goes on. "skip": the gradients are dropped. "again": they are dropped, and the step is
    done once more from the state as it stands (what the forward pass counts, such as BatchNorm's statistics, counts it
    twice). Both are a roll-back where the optimizer has used the gradients. "roll-back": they are dropped, and the
    newest clean checkpoint comes back when the step is over. "replay": what the Guard's `replay` makes of it, without
    one a roll-back. "stop": the `ranks` end with `code`, the others with 85 (docs/exit-codes.md).
    """

    why: str
    want: Want = "roll-back"
    ranks: tuple[int, ...] = ()
    """Who is to blame, as global ranks; none where nobody can be named."""
    since: int | None = None
    """Checkpoints later than this step are in doubt: it is the last one that is known to be right. None: none is."""
    state: Literal["suspect", "condemned"] = "suspect"
    """What the checkpoints in doubt become."""
    code: int = HARDWARE
    alone: bool = False
    """Only this rank knows of it."""


class Check:
    """Looks at the state at two moments of each step; overrides what it needs. All are called on all ranks alike.

    One that is a `links.Link` too sees the gradients on their way.
    """

    def attach(self, guard: Guard) -> None:
        """Once, when the Guard is made: its `model`, `optimizer`, `place` and `history` are there."""

    def backward_done(self, step: int) -> Finding | None:
        """The gradients of step `step` (0-based) are reduced, the optimizer has not used them."""

    def end_step(self, done: int) -> Finding | None:
        """After an optimizer step that was taken, `done` of them now; the checkpoint of it, if due, comes later."""

    def before_save(self, done: int) -> Finding | None:
        """The state after `done` steps is about to become a checkpoint, or is what the training ends with."""

    def restored(self, step: int) -> None:
        """The state was put back to what it was after `step` steps: what was remembered of later ones is void."""


def reduced_by(guard: Guard, who: str) -> tuple[dist.ProcessGroup | None, list[int]]:
    """DDP's process group and its global ranks, for a check `who` of its buckets; nobody, said once, where it is not
    DDP that reduces.
    """
    if isinstance(guard.model, DistributedDataParallel):
        group = guard.model.process_group
        return group, dist.get_process_group_ranks(group)
    if guard.place.world > 1:
        log.warning("%s looks at DDP's buckets only: nothing is looked at in %s", who, type(guard.model).__name__)
    return None, []


def minority(values: Sequence[int]) -> list[int]:
    """Which of the values, by place, stand against a majority; none where there is none."""
    value, most = Counter(values).most_common(1)[0]
    return [at for at, one in enumerate(values) if one != value] if most * 2 > len(values) else []


def of_all_groups(found: Found, ranks: int) -> list[Found]:
    """What was found by each rank. One of DDP's process groups of `ranks` ranks has looked by itself; if that is not
    everybody the others are told here, so that all ranks act alike. On all ranks together.
    """
    if ranks == dist.get_world_size():
        return [found]
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, found)
    return told
