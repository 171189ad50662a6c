"""What needs a GPU: the capture into pinned memory, the check of gradients, the Guard's wait, NVML's counters,
the replica hash.

    make gpu-check        or        python benchmarks/torch_gpu.py [--json]

Ends 0 and says so where there is no GPU. Takes under two minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from medevac.torch import CheckpointManager, Guard
from medevac.torch.bridge import Bridge
from medevac.torch.ecc import EccWatch
from medevac.torch.place import here
from medevac.torch.replica_hash import hash_tensors, on_device

LIMIT_S = 60.0


def device_seconds(call: Callable[[], object], times: int = 20) -> float:
    """Mean time of a call, waited for."""
    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def model_of(parameters: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    side = 4096
    model = nn.Sequential(*[nn.Linear(side, side) for _ in range(max(parameters // side**2, 1))]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.randn(64, side, device="cuda")).square().mean().backward()
    optimizer.step()
    return model, optimizer


def checkpoint_rows(folder: Path) -> dict[str, object]:
    """Saved, changed, loaded again: the same bits; and how long the training was held up."""
    model, optimizer = model_of(100_000_000)
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    manager = CheckpointManager(folder, model, optimizer, keep=1)
    stalls = []
    for step in (1, 2, 3, 4):
        manager.save(step)
        stalls.append(manager.stall_s)
        if not manager.wait():
            return {"checkpoint_problem": manager.failed}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    manager.load(folder / "step_00000004")
    same = all(torch.equal(one, other) for one, other in zip(kept, model.parameters(), strict=True))
    manager.close()
    clone = device_seconds(lambda: [p.clone() for p in model.parameters()])
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    bridge = Bridge(0, 1, torch.device("cuda"))
    check = device_seconds(lambda: bridge.before(flat, 0))
    return {
        "checkpoint_bit_equal": same,
        "checkpoint_stall_s": round(min(stalls[2:]), 5),
        "checkpoint_save_s": round(manager.save_s, 3),
        "clone_s": round(clone, 6),
        "non_finite_pass_s": round(check, 6),
    }


def guard_row(folder: Path) -> dict[str, object]:
    """The same small loop with and without the Guard."""
    took = []
    for guarded in (False, True):
        model, optimizer = model_of(50_000_000)
        guard = Guard(model, optimizer, checkpoint_dir=folder / "guard", interval=1e9, save_last=False)
        rows = torch.randn(512, 4096, device="cuda")

        def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(rows).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in guard.steps(0, 100):
            loss = step(model, optimizer, rows)
            if guarded:
                guard.backward_done()
            optimizer.step()
            if guarded:
                guard.end_step(loss=loss)
        torch.cuda.synchronize()
        took.append((time.perf_counter() - began) / 100)
    return {"step_s": round(took[0], 6), "guard_added_s": round(took[1] - took[0], 6)}


def ecc_row() -> dict[str, object]:
    """NVML's count of uncorrected errors for this GPU, by way of the child process."""
    watch = EccWatch(here().gpu)
    deadline = time.monotonic() + LIMIT_S
    while watch.count is None and time.monotonic() < deadline:
        watch.ask()
        watch.look()
        time.sleep(0.05)
    count = watch.count
    watch.close()
    return {"gpu": here().gpu, "pci": here().pci, "uncorrected": count}


def replica_hash_rows() -> dict[str, object]:
    """The Triton kernel against the CPU's hash, odd sizes too; and 1 GiB against a device copy of the same."""
    torch.manual_seed(0)
    sizes = (0, 1, 7, 8, 4097, 8 << 20, (64 << 20) + 13)
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    tensors += [torch.randn(1001, 17).bfloat16(), torch.randn(300, 200).T, torch.tensor(3.5)]
    equal = hash_tensors([tensor.cuda() for tensor in tensors]) == hash_tensors(tensors)
    data = torch.randint(0, 256, (1 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(data)
    copy, took = device_seconds(lambda: target.copy_(data)), device_seconds(lambda: on_device(data))
    return {
        "replica_hash_bit_equal": equal,
        "replica_hash_gb_s": round(data.numel() / took / 1e9, 1),
        "device_copy_gb_s": round(data.numel() / copy / 1e9, 1),
        "replica_hash_rate_vs_device_copy": round(copy / took, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    given, _ = parser.parse_known_args()
    rows: dict[str, object] = {"benchmark": "torch_gpu", "device": None}
    if not torch.cuda.is_available():
        print(json.dumps(rows) if given.json else "There is no GPU here: nothing was checked.")
        return 0
    rows["device"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as name:
        rows |= ecc_row() | checkpoint_rows(Path(name)) | guard_row(Path(name)) | replica_hash_rows()
    print(json.dumps(rows) if given.json else "\n".join(f"{key}: {value}" for key, value in rows.items()))
    return 0 if rows.get("checkpoint_bit_equal") and rows.get("replica_hash_bit_equal") else 1


if __name__ == "__main__":
    sys.exit(main())
