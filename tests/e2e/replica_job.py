"""A small training on gloo in whose memory bits flip: `ddp`, or `hsdp` (FSDP2 with a replicate dimension of 2).

    replica_job.py KIND FAULT --where NAME --rank R --at STEP [--every N] [--no-check-at-save]

FAULT: none; transient (once); persistent (each time on the GPU where that rank first ran); software (each time on that
rank, wherever it runs). Says what it came to in `final.json` of its checkpoint folder, as examples/torch_ddp.py does.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from medevac.torch import Guard
from medevac.torch.replica_check import ReplicaCheck
from medevac.torch.replicas import copies
from torch_ddp import batch, finish, network, start

STEPS, SAVE_EVERY = 24, 4
BIT = 1 << 23
"""The lowest bit of a float's exponent: the value is doubled or halved, nothing becomes infinite."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ddp", "hsdp"))
    parser.add_argument("fault", choices=("none", "transient", "persistent", "software"))
    parser.add_argument("--where", default="0.weight")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--no-check-at-save", action="store_true")
    parser.add_argument("--checkpoint-dir", type=Path, default=os.environ.get("MEDEVAC_CHECKPOINT_DIR"))
    return parser.parse_args()


def wrapped(kind: str, model: nn.Sequential) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def in_order(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The mean, added up by rank. DDP orders its buckets anew after a start's first step, and with them the ring in
    which gloo adds: with three ranks a restart would move last bits.
    """
    gathered = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    work = dist.all_gather(gathered, bucket.buffer(), async_op=True)

    def mean(_: torch.futures.Future[Any]) -> Tensor:
        total = gathered[0]
        for one in gathered[1:]:
            total = total + one
        return total / len(gathered)

    future: torch.futures.Future[Tensor] = work.get_future().then(mean)
    return future


def strikes(given: argparse.Namespace, step: int, rank: int) -> bool:
    """Whether this rank's memory is hit now."""
    if given.fault == "none" or step != given.at:
        return False
    if given.fault == "software":
        return rank == int(given.rank)
    mark = given.checkpoint_dir.with_name("struck")
    here = os.environ.get("MEDEVAC_GPU", f"rank{rank}")
    if rank == given.rank and not mark.exists():
        mark.write_text(here)
        return True
    return bool(given.fault == "persistent" and mark.exists() and mark.read_text() == here)


@torch.no_grad()
def flip(model: nn.Module, optimizer: torch.optim.Optimizer, where: str) -> None:
    tensor = next(one.tensor for one in copies(model, optimizer) if one.name == where)
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    words = local.view(-1).view(torch.int32)
    words[len(words) // 2] ^= BIT


def main() -> None:
    given = options()
    given.checkpoint_dir = Path(given.checkpoint_dir).absolute()
    device = start()
    rank = dist.get_rank()
    model = wrapped(given.kind, network(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    check = ReplicaCheck(given.every, before_save=not given.no_check_at_save)
    hook = in_order if given.kind == "ddp" else None
    saving: dict[str, Any] = {"checkpoint_dir": given.checkpoint_dir, "every_steps": SAVE_EVERY, "keep": 0}
    guard = Guard(model, optimizer, checks=(check,), hook=hook, **saving)
    for step in guard.steps(guard.resume().step, STEPS):
        time.sleep(given.step_seconds)
        if strikes(given, step, rank):
            flip(model, optimizer, given.where)
        rows, labels = batch(step, rank, device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        guard.backward_done()
        optimizer.step()
        guard.end_step(loss=loss)
    finish(given.checkpoint_dir, STEPS, model, rank)


if __name__ == "__main__":
    main()
