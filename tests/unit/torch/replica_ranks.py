"""Real ranks on gloo and what a replica check says to each of them, as a line of JSON.

replica_ranks.py STORY ...
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from medevac.torch import Guard
from medevac.torch.checks import Finding
from medevac.torch.replica_check import ReplicaCheck
from medevac.torch.replicas import copies


def network(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(dropout), nn.Linear(12, 5))


def guarded(model: nn.Module, folder: Path | None = None, **more: Any) -> tuple[Guard, ReplicaCheck]:
    check = ReplicaCheck(1, **more)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Guard(model, optimizer, checks=(check,), checkpoint_dir=folder), check


def step(guard: Guard, seed: int) -> None:
    torch.manual_seed(seed + dist.get_rank())
    guard.optimizer.zero_grad()
    guard.model(torch.randn(4, 8)).square().mean().backward()
    guard.optimizer.step()


@torch.no_grad()
def flip(guard: Guard, name: str, rank: int, bit: int = 3) -> None:
    if dist.get_rank() == rank:
        tensor = next(one.tensor for one in copies(guard.model, guard.optimizer) if one.name == name)
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        local.view(-1)[:1].view(torch.int32)[0] ^= 1 << bit


def told(finding: Finding | None) -> Any:
    return None if finding is None else [finding.want, list(finding.ranks), finding.since, finding.why]


def ddp() -> Any:
    """Dropout and batch statistics of each rank's own, accumulation: no alarm; then one bit of each kind of tensor."""
    guard, check = guarded(DistributedDataParallel(network(dropout=0.5)))
    clean = []
    for at in range(10):
        with guard.model.no_sync():  # type: ignore[operator]
            guard.model(torch.randn(4, 8)).sum().backward()
        step(guard, 100 * at)
        clean.append(told(check.end_step(at)))
    seen = []
    for at, name in enumerate(("3.weight", "0.bias/exp_avg", "0.weight/step"), 10):
        flip(guard, name, rank=2)
        seen.append(told(check.end_step(at)))
        flip(guard, name, rank=2)
        check._file.open = None  # type: ignore[union-attr]
    return {"clean": clean, "seen": seen, "after": told(check.end_step(20))}


def hsdp() -> Any:
    model = network()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    guard, check = guarded(model)
    step(guard, 0)
    clean = told(check.end_step(1))
    flip(guard, "3.weight", rank=3)
    ranks = sorted({one.ranks for one in copies(guard.model, guard.optimizer)})
    return {"clean": clean, "seen": told(check.end_step(2)), "ranks": ranks}


def sharded() -> Any:
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    guard, check = guarded(model)
    step(guard, 0)
    return {"clean": told(check.end_step(1)), "copies": len(copies(guard.model, guard.optimizer))}


def tensor_parallel() -> Any:
    """Two by two: data parallel by FSDP2, the layers split by columns and rows; only the last bias has copies."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    guard, check = guarded(model)
    torch.manual_seed(dist.get_rank() // 2)
    guard.model(torch.randn(4, 8)).square().mean().backward()
    guard.optimizer.step()
    clean = told(check.end_step(1))
    names = {one.name: one.ranks for one in copies(guard.model, guard.optimizer)}
    flip(guard, "2.bias/exp_avg", rank=0)
    return {"clean": clean, "names": names, "seen": told(check.end_step(2))}


def left_out() -> Any:
    """A parameter that each rank has of its own, and state that one rank alone has."""
    guard, check = guarded(network(), leave_out=("0.*",), group=dist.group.WORLD)
    step(guard, 0)
    for name, one in guard.model.named_parameters():
        if not name.startswith("0."):
            dist.broadcast(one.data, 0)
    guard.optimizer.state.clear()
    if dist.get_rank() == 1:
        guard.optimizer.state[guard.model[3].weight] = {"own": torch.ones(3)}  # type: ignore[index]
    first = told(check.end_step(1))
    return {"first": first, "second": told(check.end_step(2))}


def main() -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stories = {one.__name__: one for one in (ddp, hsdp, sharded, tensor_parallel, left_out)}
    said = json.dumps({name: stories[name]() for name in sys.argv[1:]})
    sys.stdout.write(said + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
