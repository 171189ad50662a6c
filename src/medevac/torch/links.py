"""What looks at gradients on their way through the reduction: a chain of links around it.

DDP takes one communication hook; this is it. FSDP2 has a custom reduce-scatter in the same place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("medevac.torch")

Reduce: TypeAlias = Callable[[GradBucket], "torch.futures.Future[Tensor]"]


class Link:
    """Sees each bucket of gradients; overrides what it needs. Runs in the backward pass: no waiting, no `.item()`."""

    watches_after = False
    """True to have `after` called: it costs a callback for each bucket."""

    def before(self, gradients: Tensor, index: int) -> None:
        """This rank's own gradients of bucket `index`, flat, not yet reduced."""

    def launch(self, bucket: GradBucket) -> None:
        """The reduction takes the bucket now, after all links' `before`. DDP only."""

    def last(self) -> None:
        """The step's last bucket has been handed to the reduction; what is sent now arrives after it."""

    def after(self, gradients: Tensor, index: int) -> None:
        """The reduced gradients (FSDP2: this rank's shard of them). May run in another thread."""


class Chain:
    """The links of one model. `attached` is how they were put there: "ddp", "fsdp" or "" (not at all)."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)
        self.attached = ""
        self._after = tuple(link for link in links if link.watches_after)

    def attach(self, model: torch.nn.Module, user_hook: Reduce | None = None) -> None:
        """Stand around the model's reduction. One that cannot be joined costs one line, and the naming of ranks."""
        try:
            if isinstance(model, DistributedDataParallel):
                # A lambda has no annotations, of which DDP accepts one spelling only.
                hook = lambda state, bucket: self._ddp(state, bucket)  # noqa: E731, PLW0108
                model.register_comm_hook(user_hook or _averaging(model), hook)
                self.attached = "ddp"
            elif any(isinstance(module, FSDPModule) for module in model.modules()):
                for module in model.modules():
                    if isinstance(module, FSDPModule):
                        module.set_custom_reduce_scatter(_reduce_scatter(self))
                self.attached = "fsdp"
            else:
                log.warning(
                    "%s is neither DDP nor FSDP2: its gradients are checked after their reduction only, and no rank is "
                    "named. Give the Guard the model that DDP or fully_shard has made",
                    type(model).__name__,
                )
        except (RuntimeError, ValueError) as problem:
            log.warning(
                "the gradients are checked after their reduction only, and no rank is named: %s. "
                "Pass your communication hook to Guard(hook=...) in place of registering it",
                problem,
            )

    def before(self, gradients: Tensor, index: int) -> None:
        for link in self.links:
            link.before(gradients, index)

    def _ddp(self, reduce: Reduce, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        index = bucket.index()
        self.before(bucket.buffer(), index)
        for link in self.links:
            link.launch(bucket)
        future = reduce(bucket)
        if bucket.is_last():
            for link in self.links:
                link.last()
        return future.then(lambda done: self._reduced(done, index)) if self._after else future

    def _reduced(self, done: torch.futures.Future[Any], index: int) -> Tensor:
        value = done.value()
        gradients: Tensor = value[0] if isinstance(value, list | tuple) else value
        for link in self._after:
            link.after(gradients, index)
        return gradients


def _averaging(model: DistributedDataParallel) -> Reduce:
    """What DDP does without a hook."""
    group = model.process_group
    return lambda bucket: allreduce_hook(group, bucket)


def _reduce_scatter(chain: Chain) -> Any:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    # Its name since 2.15; the earlier one lives on for a while.
    reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    class Watched(ReduceScatter):
        """The default reduce-scatter of FSDP2 with the chain around it."""

        def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self,
            output_tensor: Tensor,
            input_tensor: Tensor,
            group: dist.ProcessGroup,
            op: Any,
            async_op: bool = False,  # noqa: FBT001, FBT002 - the same
        ) -> dist.Work | None:
            chain.before(input_tensor, 0)
            work: dist.Work | None = reduce(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
            if work is None:
                for link in chain.links:
                    if link.watches_after:
                        link.after(output_tensor, 0)
            return work

    return Watched()
