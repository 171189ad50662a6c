"""Robust aggregation in place of DDP's all-reduce: a wrong minority of ranks does not decide.

    guard = Guard(model, optimizer, hook=RobustHook(MultiKrum(f=1)))

Each rank gathers one slice of the bucket from all ranks, aggregates it, and gives the result to all: what is sent is
what an all-reduce sends (a gather of whole buckets would send n / 2 times that). Methods that choose among ranks by
distance add one all-reduce of n x n floats. The price is elsewhere: the reduction does not overlap with the backward
pass, and no method but the mean uses all of the data. For DDP; FSDP2's reduction is its own.

A rank that aggregates wrongly spoils its own slice on all ranks alike: what is withstood is a wrong gradient, not wrong
arithmetic in the aggregation; see docs/gradients.md.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from medevac.torch.aggregate import Aggregate, distances, finite_or_far


class RobustHook:
    """A DDP communication hook; see the module. `group`: DDP's own, by default all ranks.

    Raises ValueError at the first step where there are too few ranks for the method's `f`.
    """

    def __init__(self, method: Aggregate, group: dist.ProcessGroup | None = None) -> None:
        self.method, self._group = method, group
        self.left_out: dict[int, int] = {}
        """How often each rank of the group was not taken, by the methods that choose (with f wrong ranks the same
        ones stand out; ranks that are only unlucky take turns)."""

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(self.reduce(bucket.buffer()))
        return done

    @torch.no_grad()
    def reduce(self, gradients: Tensor) -> Tensor:
        """The aggregate of all ranks' flat gradients, the same bits on all ranks."""
        ranks = dist.get_world_size(self._group)
        self.method.check(ranks)
        slices = self._slices(gradients, ranks)
        taken = slices[self._taken(slices)] if self.method.by_distance else slices
        own = self.method.combine(taken).to(gradients.dtype)
        whole = own.new_empty(ranks * len(own))
        dist.all_gather_into_tensor(whole, own, group=self._group)
        return whole[: len(gradients)]

    def _slices(self, gradients: Tensor, ranks: int) -> Tensor:
        """[ranks, k]: this rank's slice of the gradients of all."""
        missing = -len(gradients) % ranks
        sent = torch.cat((gradients, gradients.new_zeros(missing))) if missing else gradients
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent.contiguous(), group=self._group)
        return got.view(ranks, -1)

    def _taken(self, slices: Tensor) -> list[int]:
        apart = distances(slices)
        dist.all_reduce(apart, group=self._group)
        taken = self.method.choose(finite_or_far(apart))
        for rank in set(range(len(slices))) - set(taken):
            self.left_out[rank] = self.left_out.get(rank, 0) + 1
        return taken
