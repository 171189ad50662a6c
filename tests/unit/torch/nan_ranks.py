"""One rank of a test job: many steps, in each a NaN or infinity in one rank's gradient, or none.

nan_ranks.py ddp|fsdp SEED TRIALS        prints one JSON line: how many were named right, and what was wrong
"""

from __future__ import annotations

import json
import logging
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from medevac.torch.bridge import BAD, Bridge
from medevac.torch.links import Chain

LAYERS = 6


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(24, 24) for _ in range(LAYERS)])
    if kind == "ddp":
        return DistributedDataParallel(layers, bucket_cap_mb=0.001)  # several buckets, overlapped
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    return layers


def main() -> None:
    kind, seed, trials = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = model_of(kind)
    bridge = Bridge(rank, world, torch.device("cpu"))
    chain = Chain((bridge,))
    chain.attach(model)
    rng, wrong = random.Random(seed), []
    for trial in range(trials):
        victim = rng.choice([None, *range(world)])
        value = rng.choice([float("nan"), float("inf"), -float("inf")])
        layer = rng.randrange(LAYERS)
        model.zero_grad()
        if rank == victim:
            spoil(model, layer, value)
        output = model(torch.randn(8, 24))
        output.square().mean().backward()
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
