"""One rank of a test job: many steps, in each a NaN or infinity in one rank's gradient, or none.

nan_ranks.py KIND[-MANNER] SEED TRIALS        prints one JSON line: how many were named right, and what was wrong

KIND: ddp, fsdp, hsdp, hook (DDP with a hook of the user's own). MANNER: no_sync (two micro-batches, the first not
reduced), micro (both reduced), scaler (a GradScaler that has found its scale).
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from medevac.torch.bridge import BAD, Bridge
from medevac.torch.links import Chain

LAYERS = 6
PENDING: list[tuple[int, float]] = []
"""The layer to spoil next, and with what."""


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(24, 24) for _ in range(LAYERS)])
    if kind in {"ddp", "hook"}:
        return DistributedDataParallel(layers, bucket_cap_mb=0.001)  # several buckets, overlapped
    world = dist.get_world_size()
    shape = {"replicate": 2, "shard": world // 2} if kind == "hsdp" else {"shard": world}
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(layers, mesh=mesh)
    return layers


def backward(model: nn.Module, manner: str, scaler: torch.amp.GradScaler | None, *, first_is_bad: bool) -> None:
    """Forward and backward as the manner has it; a spoilt layer is spoilt in one of the micro-batches."""
    batches = 1 if manner not in {"no_sync", "micro"} else 2
    for batch in range(batches):
        last = batch == batches - 1
        hold = manner == "no_sync" and not last
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(not hold)
        with model.no_sync() if hold and isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
            spoilt = PENDING.pop() if PENDING and (first_is_bad or last) else None
            if spoilt:
                spoil(model, *spoilt)
            loss = model(torch.randn(8, 24)).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()


def main() -> None:
    (kind, _, manner), seed, trials = sys.argv[1].partition("-"), int(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = model_of(kind)
    bridge = Bridge(rank, world, torch.device("cpu"))
    chain = Chain((bridge,))
    group = dist.distributed_c10d._get_default_group()
    bridge.follows = kind != "hook"
    chain.attach(model, (lambda bucket: bf16_compress_hook(group, bucket)) if kind == "hook" else None)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if manner == "scaler" else None
    rng, wrong = random.Random(seed), []
    for trial in range(trials):
        victim = rng.choice([None, *range(world)])
        value = rng.choice([float("nan"), float("inf"), -float("inf")])
        layer = rng.randrange(LAYERS)
        first_is_bad = rng.random() < 0.5
        model.zero_grad()
        if rank == victim:
            PENDING.append((layer, value))
        backward(model, manner, scaler, first_is_bad=first_is_bad)
        told = bridge.settle(model.parameters(), want_norm=True, agree=True)
        wanted = () if victim is None else (victim,)
        finite = told.norm is not None and torch.isfinite(torch.tensor(told.norm)).item()
        if told.ranks(BAD) != wanted or finite != (victim is None):
            wrong.append([trial, victim, told.ranks(BAD), told.norm])
    everyone: list[object] = [None] * world
    dist.all_gather_object(everyone, wrong)
    if rank == 0:
        print(json.dumps({"attached": chain.attached, "trials": trials, "wrong": everyone}))  # noqa: T201 - for the test to read
    dist.barrier()
    dist.destroy_process_group()


def spoil(model: nn.Module, layer: int, value: float) -> None:
    """One element of the gradient that comes into one layer, once. (FSDP2's parameters have no hooks of their own.)"""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)][layer]

    def put(gradient: torch.Tensor) -> torch.Tensor:
        bad = gradient.clone()
        bad.view(-1)[5] = value
        return bad

    def watch(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        handle.remove()
        output.register_hook(put)  # type: ignore[no-untyped-call]

    handle = linear.register_forward_hook(watch)


if __name__ == "__main__":
    main()
