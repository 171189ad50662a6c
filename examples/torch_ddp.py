"""A small PyTorch training that survives: three lines of Guard around a plain loop, DDP or (torch_fsdp2.py) FSDP2.

    torchrun --nproc-per-node 2 examples/torch_ddp.py --steps 40
    medevac run --nproc 4 -- python examples/torch_ddp.py --steps 40
    medevac run -- python -m medevac.torch.run --nproc-per-node 4 examples/torch_ddp.py --steps 40

Runs on CPUs too. `--memory DIR` gives each rank a mapped file that stands for bad cells of its GPU's memory: a word of
it that is not 0 is written over a parameter, which is how the faults of `inject.py` reach this training.
`--nan STEP:RANK` spoils one gradient, once. `--no-guard` is the same training without Medevac, for contrast.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from medevac.client.seal import newest
from medevac.core.seal import step_folder
from medevac.torch import Guard, Resumed
from medevac.torch.state import TrainingState

INPUTS, HIDDEN, CLASSES, ROWS = 32, 64, 10, 16
CELLS = 1024
"""Words of a rank's mapped file. The last one tells the step, which changes as real memory does."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=8, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="a step takes at least so long")
    parser.add_argument("--checkpoint-dir", type=Path, default=os.environ.get("MEDEVAC_CHECKPOINT_DIR", "checkpoints"))
    parser.add_argument("--on-bad", choices=("roll-back", "skip", "stop"), default="roll-back")
    parser.add_argument("--nan", default="", metavar="STEP:RANK")
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--no-guard", action="store_true")
    given = parser.parse_args()
    given.checkpoint_dir = given.checkpoint_dir.absolute()
    return given


def start() -> torch.device:
    """Join the other ranks; the device of this one. One process alone is a group of one."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    cuda = torch.cuda.is_available()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    if not cuda:
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda")


def network(device: torch.device) -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    return nn.Sequential(*layers).to(device)


def batch(step: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows of one rank: they depend on step and rank alone. What is to be learnt is a fixed random map."""
    teacher = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(2))
    rows = torch.randn(ROWS, INPUTS, generator=torch.Generator().manual_seed(1000 * step + rank))
    return rows.to(device), (rows @ teacher).argmax(1).to(device)


class BadCells:
    """The mapped file of one rank, see the module."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._words: np.memmap[tuple[int], np.dtype[np.float32]] | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{os.environ.get('MEDEVAC_GPU') or f'rank{rank}'}.bin"
            staged = path.with_name(f".{path.name}.{os.getpid()}")
            np.zeros(CELLS, np.float32).tofile(staged)
            staged.replace(path)
            self._words = np.memmap(path, np.float32, "r+", shape=(CELLS,))

    @torch.no_grad()
    def touch(self, model: nn.Module, step: int) -> None:
        if self._words is None:
            return
        self._words[-1] = step + 1
        bad = np.flatnonzero(np.array(self._words[:-1]) != 0)
        parameter = next(model.parameters())
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if len(bad):
            local.view(-1)[:1] = float(self._words[bad[0]])


class Plain:
    """The same loop without Medevac: a checkpoint now and then, and the newest one at a restart."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, every: int) -> None:
        self._state = TrainingState(model, optimizer, {})
        self._folder, self._every, self._step = folder, every, 0

    def resume(self) -> Resumed:
        path = newest(self._folder)
        if path is None:
            return Resumed()
        self._state.load(path)
        return Resumed(step=int(path.name[5:]), path=path)

    def steps(self, start: int, total: int) -> Iterator[int]:
        for self._step in range(start, total):
            yield self._step

    def backward_done(self) -> bool:
        return True

    def end_step(self, *, loss: Tensor) -> None:
        if (self._step + 1) % self._every == 0:
            save(self._state.flat()[0], checkpoint_id=self._folder / step_folder(self._step + 1))


def train(given: argparse.Namespace, wrap: Callable[[nn.Sequential], nn.Module]) -> float:
    """Train to the end; the last loss."""
    device = start()
    rank = dist.get_rank()
    model = wrap(network(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    cells, nan, loss = BadCells(given.memory, rank), given.nan, torch.zeros(())
    folder, every = given.checkpoint_dir, given.save_every
    guard = (
        Plain(model, optimizer, folder, every)
        if given.no_guard
        else Guard(model, optimizer, checkpoint_dir=folder, every_steps=every, on_bad=given.on_bad)
    )
    state = guard.resume()
    for step in guard.steps(state.step, given.steps):
        time.sleep(given.step_seconds)
        cells.touch(model, step)
        rows, labels = batch(step, rank, device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        if nan == f"{step}:{rank}":
            loss, nan = loss * float("nan"), ""
        loss.backward()  # type: ignore[no-untyped-call]
        guard.backward_done()
        optimizer.step()
        guard.end_step(loss=loss)
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}/{given.steps} loss {loss.item():.4f}", flush=True)
    finish(given.checkpoint_dir, given.steps, model, rank)
    return loss.item()


def finish(folder: Path, step: int, model: nn.Module, rank: int) -> None:
    """Say what the training came to, on the screen and in `final.json`."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    flat = torch.cat([p.detach().reshape(-1).cpu() for p in whole])
    if rank == 0:
        digest = f"sha256:{hashlib.sha256(flat.numpy().tobytes()).hexdigest()}"
        result = {"step": step, "parameters": digest, "finite": bool(torch.isfinite(flat).all())}
        (folder / ".final.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        (folder / ".final.json").replace(folder / "final.json")
        print(f"final step {step} parameters {digest}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    given = options()
    train(given, DistributedDataParallel)


if __name__ == "__main__":
    main()
