"""What medevac.torch costs a training, and how fast a killed rank is back, beside what PyTorch itself offers.

    python benchmarks/torch_overhead.py [--json] [--full] [--no-crash]

One process for the overheads, `--ranks` for the crash (the same job under `medevac run` and under torchrun with its
workaround). `--full` is the model of 48.8 M parameters; else an eighth of it. Ratios are within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel

from medevac.client import Client
from medevac.client.link import SocketLink
from medevac.torch import CheckpointManager, Guard
from medevac.torch.bridge import Bridge

STEP_S = 0.1
LIMIT_S = 240.0


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
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
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
    }


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def _async_stall(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> float:
    """`dcp.async_save` as it comes, one in flight: how long the call blocks."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_port()))
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


def _port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


# --- a killed rank ----------------------------------------------------------------------------------------------------


def job(folder: Path, *, full: bool, guarded: bool) -> None:
    """The training that is killed: each rank appends `time rank step pid` to one file after each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net(full=full)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    plain = folder / "plain.pt"
    guard, start = None, 0
    if guarded:
        guard = Guard(model, optimizer, every_steps=4, save_last=False)
        start = guard.resume().step
    elif plain.exists():
        saved = torch.load(plain, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optim"])
        start = saved["step"]
    for step in guard.steps(start, 10**6) if guard else range(start, 10**6):
        one_step(model, optimizer, net.words, 1000 * step + rank)
        if guard:
            guard.backward_done()
        optimizer.step()
        if guard:
            guard.end_step()
        elif rank == 0 and (step + 1) % 4 == 0:
            torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "step": step + 1}, f"{plain}.new")
            Path(f"{plain}.new").replace(plain)
        with (folder / "steps").open("a") as out:
            out.write(f"{time.time()} {rank} {step + 1} {os.getpid()}\n")


def crash_seconds(folder: Path, command: list[str], ranks: int) -> float:
    """From SIGKILL of one rank, two steps after a checkpoint, to the first step that a new process has done."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        _until(lambda: any(step >= 14 for _, _, step, _ in _steps(folder)), folder)
        first = {pid for _, _, _, pid in _steps(folder)}
        victim = next(pid for _, rank, _, pid in reversed(_steps(folder)) if rank == ranks - 1)
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        _until(lambda: any(pid not in first for *_, pid in _steps(folder)), folder)
        return next(at for at, _, _, pid in _steps(folder) if pid not in first) - killed
    finally:
        run.terminate()
        try:
            run.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def _steps(folder: Path) -> list[tuple[float, int, int, int]]:
    path = folder / "steps"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(line[0]), int(line[1]), int(line[2]), int(line[3])) for line in lines if len(line) == 4]


def _until(is_so: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError((folder / "log").read_text()[-3000:])
        time.sleep(0.02)


def crash_rows(ranks: int, *, full: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = Path(name, "ours"), Path(name, "theirs")
        ours.mkdir()
        theirs.mkdir()
        script = [str(Path(__file__).resolve()), *(["--full"] if full else []), "--job"]
        medevac = [sys.executable, "-m", "medevac.cli.main", "run", "--state-dir", str(ours / "state")]
        medevac += ["--checkpoint-dir", str(ours / "ck"), "--nproc", str(ranks), "--", sys.executable, *script]
        own = crash_seconds(ours, [*medevac, str(ours), "--guarded"], ranks)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts=3"]
        peer = crash_seconds(theirs, [*torchrun, *script, str(theirs)], ranks)
    return {
        "crash_to_next_step_s": own,
        "crash_to_next_step_torchrun_s": peer,
        "crash_to_next_step_ratio": own / peer,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="48.8 M parameters")
    parser.add_argument("--no-crash", action="store_true", help="only the overheads")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--guarded", action="store_true", help=argparse.SUPPRESS)
    given, _ = parser.parse_known_args()
    if given.job:
        job(given.job, full=given.full, guarded=given.guarded)
        return 0
    torch.set_num_threads(1)
    spent = guard_seconds()
    rows: dict[str, float] = {"guard_s": spent, "guard_share_of_100ms_step": spent / STEP_S}
    rows |= checkpoint_rows(full=given.full)
    if not given.no_crash:
        rows |= crash_rows(given.ranks, full=given.full)
    rows = {name: float(f"{value:.4g}") for name, value in rows.items()}
    print(json.dumps({"benchmark": "torch_overhead", **rows}) if given.json else "\n".join(map(str, rows.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
