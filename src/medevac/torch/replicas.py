"""Which tensors of a training stand on several ranks, and on which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from medevac.torch.replica_hash import has_memory

Ranks: TypeAlias = tuple[int, ...]


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, or this rank's shard of one, and the ranks that should hold the same: this one among them."""

    name: str
    tensor: Tensor
    ranks: Ranks


def copies(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
) -> list[Copy]:
    """Parameters and optimizer state that have a copy on another rank, in the same order on each.

    A sharded tensor has copies along the dimensions of its mesh that replicate it. A plain one has them in `group`, by
    default DDP's. Buffers and whatever else a rank may have of its own (random states, sampler) are left out.
    """
    return [one for one in _copies(model, optimizer, group) if has_memory(one.tensor)]


def unread(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
) -> list[str]:
    """The names of those that have a copy, but no memory that could be compared: see `replica_hash.has_memory`."""
    return [one.name for one in _copies(model, optimizer, group) if not has_memory(one.tensor)]


def _copies(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None
) -> Iterator[Copy]:
    for name, tensor, ranks in _all(model, optimizer, _members(model, group)):
        if len(ranks) > 1:
            yield Copy(name=name, tensor=tensor, ranks=ranks)


def _members(model: torch.nn.Module, group: dist.ProcessGroup | None) -> Ranks:
    if group is None and isinstance(model, DistributedDataParallel):
        group = model.process_group
    if group is None or not dist.is_initialized():
        return ()
    return tuple(dist.get_process_group_ranks(group))


def _all(model: torch.nn.Module, optimizer: torch.optim.Optimizer, plain: Ranks) -> Iterator[tuple[str, Tensor, Ranks]]:
    names: dict[Tensor, str] = {parameter: name.removeprefix("module.") for name, parameter in model.named_parameters()}
    for parameter, name in names.items():
        yield name, parameter, ranks_of(parameter, plain)
    for parameter in _optimized(optimizer):
        name = names.get(parameter, "a parameter outside of the model")
        ranks = ranks_of(parameter, plain)
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, Tensor):
                yield f"{name}/{key}", value, ranks_of(value, ranks)


def _optimized(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def ranks_of(tensor: Tensor, plain: Ranks) -> Ranks:
    """The ranks that hold what this rank holds of the tensor; `plain` where it is no DTensor."""
    if not isinstance(tensor, DTensor):
        return plain
    at = tensor.device_mesh.get_coordinate()
    if at is None or any(place.is_partial() for place in tensor.placements):
        return ()
    places = zip(at, tensor.placements, strict=True)
    index = tuple(slice(None) if isinstance(place, Replicate) else here for here, place in places)
    return tuple(sorted(tensor.device_mesh.mesh[index].flatten().tolist()))
