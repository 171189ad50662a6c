"""The training that torch_restart.py hurts: each rank appends what it does, with the time, to one file.

With `--guarded` it has Medevac's Guard, else `torch.save` and rename by rank 0 and `torch.load` by all; under
ft_launcher it sends that one's heartbeats.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_overhead import Net, one_step

from medevac.torch import Guard

IMPORTED = time.time()
EVERY = 3
"""Steps from checkpoint to checkpoint."""


def began() -> float:
    """When this process did, or was forked: field 22 of /proc/self/stat, in ticks since boot."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


class Plain:
    """The same loop as PyTorch has it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self._model, self._optimizer, self._path = model, optimizer, folder / "plain.pt"
        self._step = 0
        self._heart: Any = None
        if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
            from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

            self._heart = RankMonitorClient()
            self._heart.init_workload_monitoring()

    def resume(self) -> int:
        if not self._path.exists():
            return 0
        saved = torch.load(self._path, weights_only=True)
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optim"])
        return int(saved["step"])

    def steps(self, start: int, total: int) -> Iterator[int]:
        for self._step in range(start, total):
            yield self._step

    def backward_done(self) -> None:
        return

    def end_step(self, *, loss: Tensor) -> None:
        if self._heart:
            self._heart.send_heartbeat()
        if dist.get_rank() == 0 and (self._step + 1) % EVERY == 0:
            state = {"model": self._model.state_dict(), "optim": self._optimizer.state_dict(), "step": self._step + 1}
            torch.save(state, f"{self._path}.new")
            Path(f"{self._path}.new").replace(self._path)


def digest(net: nn.Module) -> str:
    found = xxhash.xxh3_64()
    for parameter in net.parameters():
        found.update(memoryview(parameter.detach().numpy()).cast("B"))  # type: ignore[arg-type]
    return found.hexdigest()


def note(folder: Path, **what: object) -> None:
    line = json.dumps({**what, "pid": os.getpid()}) + "\n"
    descriptor = os.open(folder / "told", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def train(folder: Path, *, full: bool, guarded: bool, total: int, pace: float, exact: bool) -> None:
    times = {"began": began(), "imported": max(IMPORTED, began())}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    times["grouped"] = time.time()
    torch.manual_seed(0)
    net = Net(full=full)
    times["built"] = time.time()
    # With more than two ranks a sum depends on its place in a bucket, and DDP makes its buckets anew after the first
    # step of each process, unless it looks for unused parameters.
    model = DistributedDataParallel(net, find_unused_parameters=exact)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    times["wrapped"] = time.time()
    guard = Guard(model, optimizer, every_steps=EVERY, save_last=False) if guarded else Plain(model, optimizer, folder)
    start = guard.resume().step if isinstance(guard, Guard) else guard.resume()
    times["loaded"] = time.time()
    tier = guard.checkpoints.loaded_from if isinstance(guard, Guard) and guard.checkpoints else ""
    note(folder, kind="start", rank=rank, step=start, tier=tier, **times)
    for step in guard.steps(start, total):
        time.sleep(pace)
        loss = one_step(model, optimizer, net.words, 1000 * step + rank)
        guard.backward_done()
        optimizer.step()
        guard.end_step(loss=loss)
        at = time.time()
        note(folder, kind="step", rank=rank, step=step + 1, at=at, hash=digest(net) if rank == 0 else "")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--guarded", action="store_true")
    parser.add_argument("--total", type=int, default=10**6)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of sleep in each step")
    parser.add_argument("--exact", action="store_true", help="the same buckets in all steps")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
