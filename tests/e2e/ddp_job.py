"""A small DDP job on gloo that goes wrong in one way, in one rank, at one step of its first attempt.

    ddp_job.py FAULT RANK STEP [--silent]

`--silent`: it prints its progress instead of speaking the in-job protocol.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from medevac.client import Client

STEPS = 3000
BATCH = 4
STEP_S = 0.02
SLOW_S = 0.08


class Rows(Dataset[torch.Tensor]):
    """Random rows; with `dies_at` the worker that reads that row is killed."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.dies_at = dies_at

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, row: int) -> torch.Tensor:
        if row == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8)


def main() -> None:
    fault, culprit, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    silent = "--silent" in sys.argv
    client = Client.from_env({} if silent else os.environ)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = dist.get_rank() == culprit and os.environ.get("MEDEVAC_ATTEMPT") == "1"
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = batches(at * BATCH if mine and fault == "loader" else None, workers=fault == "loader")
    for step in range(1, STEPS):
        began = time.perf_counter()
        now = mine and step >= at
        time.sleep(SLOW_S if now and fault == "slow" else STEP_S)
        batch = next(rows)
        if now and fault == "stuck":
            wait_for_nothing()
        if now and fault == "nan":
            batch = batch * float("nan")
        if now and fault == "exception":
            batch = batch[:, dict[str, int]()["rows"]]
        loss = model(batch).pow(2).mean()
        compute_s = time.perf_counter() - began
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        client.heartbeat(step, loss=loss.detach(), compute_s=compute_s)
        if silent and dist.get_rank() == 0:
            sys.stdout.write(f"step {step} loss {loss.item():.4f}\n")
            sys.stdout.flush()
        if now and fault == "disk":
            save(model)
    client.heartbeat(STEPS, "end")
    dist.destroy_process_group()


def wait_for_nothing() -> None:
    time.sleep(3600)


def batches(dies_at: int | None, *, workers: bool) -> Iterator[torch.Tensor]:
    loader = DataLoader(Rows(dies_at), batch_size=BATCH, num_workers=1 if workers else 0)
    return iter(loader)


def save(model: torch.nn.Module) -> None:
    """/dev/full is a device on which no space is ever left."""
    with open("/dev/full", "wb", buffering=0) as disk:  # noqa: PTH123 - not a file of ours
        torch.save(model.state_dict(), disk)


if __name__ == "__main__":
    main()
