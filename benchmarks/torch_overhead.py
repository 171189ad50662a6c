"""What medevac.torch costs a training, beside what PyTorch itself offers. Restarts are torch_restart.py's.

    python benchmarks/torch_overhead.py [--json] [--full]

One process. `--full` is the model of 48.8 M parameters; else an eighth of it. Ratios are within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save

from medevac.client import Client
from medevac.client.link import SocketLink
from medevac.torch import CheckpointManager, Guard
from medevac.torch.bridge import Bridge

STEP_S = 0.1


class Net(nn.Module):
    """The toy transformer of the baselines: an embedding tied to the head, encoder layers, a last norm."""

    def __init__(self, *, full: bool) -> None:
        super().__init__()
        width, layers, words = (768, 6, 8192) if full else (384, 3, 2048)
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.words = words

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden) @ self.embedding.weight.T  # type: ignore[no-any-return]


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, words: int, seed: int) -> torch.Tensor:
    tokens = torch.randint(words, (1, 16), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    nexts = tokens.roll(-1, 1)  # the tied embedding knows the word itself from the start: nothing would be learnt
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), nexts.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def seconds(call: Callable[[], object], times: int = 5) -> float:
    """Median of so many calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


# --- overheads --------------------------------------------------------------------------------------------------------


def guard_seconds(steps: int = 500) -> float:
    """What the Guard's own calls take a step, with a heartbeat to a real socket and the norm that the loop has."""
    with tempfile.TemporaryDirectory() as folder:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"{folder}/s")
        listener.listen()
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = Guard(model, optimizer, client=Client(SocketLink(f"{folder}/s"), job="j", attempt=1))
        peer, _ = listener.accept()
        spent = []
        iterator = iter(guard.steps(0, steps))
        loss = torch.tensor(1.0)
        for _ in range(steps):
            began = time.perf_counter()
            next(iterator, None)
            guard.backward_done(grad_norm=1.0)
            guard.end_step(loss=loss)
            spent.append(time.perf_counter() - began)
            peer.recv(1 << 16)
        guard.close()
        peer.close()
        listener.close()
    return statistics.median(spent)


def checkpoint_rows(*, full: bool) -> dict[str, float]:
    torch.manual_seed(0)
    model = Net(full=full)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    one_step(model, optimizer, model.words, 0)
    optimizer.step()
    tensors = [*model.state_dict().values(), *_moments(optimizer)]
    kept = [tensor.clone() for tensor in tensors]
    clone = seconds(lambda: [tensor.clone() for tensor in tensors])
    copy = seconds(lambda: [to.copy_(tensor) for to, tensor in zip(kept, tensors, strict=True)])
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    bridge = Bridge(0, 1, torch.device("cpu"))
    check = seconds(lambda: bridge.before(flat, 0))
    norms = seconds(lambda: torch.linalg.vector_norm(flat))
    step = seconds(lambda: (one_step(model, optimizer, model.words, 1), optimizer.step()), 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manager = CheckpointManager(folder, model, optimizer, keep=1)
        stalls, saves = [], []
        for step in range(1, 7):
            manager.save(step)
            stalls.append(manager.stall_s)
            manager.wait()
            saves.append(manager.save_s)
        manager.close()
        plain = seconds(lambda: torch.save([model.state_dict(), optimizer.state_dict()], folder / "plain.pt"), 3)
        asynchronous = _async_stall(model, optimizer, folder)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    stall = statistics.median(stalls[2:])  # the first of each slot pays for fresh pages
    return {
        "state_mb": round(size / 1e6, 1),
        "checkpoint_stall_s": stall,
        "checkpoint_first_stall_s": stalls[0],
        "checkpoint_stall_vs_clone": stall / clone,
        "checkpoint_stall_vs_copy": stall / copy,
        "checkpoint_stall_vs_async_save": stall / asynchronous,
        "checkpoint_stall_vs_torch_save": stall / plain,
        "checkpoint_save_s": statistics.median(saves),
        "non_finite_pass_s": check,
        "non_finite_pass_vs_gradient_copy": check / seconds(flat.clone),
        "non_finite_pass_vs_vector_norm": check / norms,
        "non_finite_share_of_step": check / step,
        "step_s": step,
    }


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def _async_stall(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> float:
    """`dcp.async_save` as it comes, one in flight: how long the call blocks."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    dist.init_process_group("gloo")
    found = []
    for number in range(4):
        state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
        began = time.perf_counter()
        future = async_save(state, checkpoint_id=folder / f"async{number}")
        found.append(time.perf_counter() - began)
        future.result()  # type: ignore[union-attr]
    dist.destroy_process_group()
    return statistics.median(found)


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="48.8 M parameters")
    given = parser.parse_args()
    torch.set_num_threads(1)
    spent = guard_seconds()
    rows: dict[str, float] = {"guard_s": spent, "guard_share_of_100ms_step": spent / STEP_S}
    rows |= checkpoint_rows(full=given.full)
    rows = {name: float(f"{value:.4g}") for name, value in rows.items()}
    print(json.dumps({"benchmark": "torch_overhead", **rows}) if given.json else "\n".join(map(str, rows.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
