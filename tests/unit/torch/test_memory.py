"""The memory of a saver whose trainer was killed: loaded from where it is what was sealed, else passed over."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from medevac.torch import CheckpointManager, memory
from medevac.torch.memory import Offer

pytestmark = pytest.mark.e2e
LIMIT_S = 60.0
FILE = "__0_0.distcp"

TRAINERS = """
import json, os, signal, sys
import torch
from medevac.torch import CheckpointManager
sys.path.insert(0, sys.argv[1])
from test_memory import made, one_step

def train(folder, end):
    model, optimizer = made()
    manager = CheckpointManager(folder, model, optimizer, every_steps=2, job="j", attempt=1)
    for step in range(1, 5):
        one_step(model, optimizer, step)
        if step % 2 == 0:
            manager.save(step, wait=True)
    if end == "closes":
        manager.close()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
for line in sys.stdin:
    folder, end, environ = json.loads(line)
    if not (pid := os.fork()):
        os.environ.update(environ)
        train(folder, end)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Forks a trainer for each line: importing torch each time would take longer than all the rest."""


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
    optimizer.step()


class Job:
    """A state folder with a controller's lease, and a trainer that saves steps 2 and 4 and is killed."""

    def __init__(self, folder: Path, trainers: subprocess.Popen[str]) -> None:
        self.trainers = trainers
        self.folder, self.state = folder / "ck", folder / "state"
        self.marks = self.state / "jobs" / "j" / "savers"
        self.marks.mkdir(parents=True)
        self.acts(until=time.time() + 600)
        self.newest = self.folder / "step_00000004"

    def acts(self, until: float) -> None:
        (self.state / "controller.lease").write_text(json.dumps({"owner": "t", "expires": until, "token": 1}))

    def train(self, end: str = "killed") -> None:
        environ = {"MEDEVAC_STATE_DIR": str(self.state), "MEDEVAC_JOB_ID": "j"}
        assert self.trainers.stdin
        assert self.trainers.stdout
        self.trainers.stdin.write(json.dumps([str(self.folder), end, environ]) + "\n")
        self.trainers.stdin.flush()
        assert self.trainers.stdout.readline().strip() == ("0" if end == "closes" else "-9")

    def offer(self) -> Offer:
        offer = memory.read(self.marks / f"{FILE}.memory")
        assert offer is not None
        return offer

    def load(self) -> tuple[str, nn.Module, torch.optim.Optimizer]:
        """In place, as the next attempt would; where it came from."""
        model, optimizer = made()
        manager = CheckpointManager(self.folder, model, optimizer, job="j", attempt=2)
        path = manager.newest_clean()
        assert path == self.newest
        assert manager.verify(path) == ""
        assert manager.load(path) == 4
        return manager.loaded_from, model, optimizer

    def saver_gone(self, pid: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while memory.started(pid):
            assert time.monotonic() < deadline, "the saver stays"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def trainers() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", TRAINERS, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainers: subprocess.Popen[str]) -> Iterator[Job]:
    made_ = Job(tmp_path, trainers)
    monkeypatch.setenv("MEDEVAC_STATE_DIR", str(made_.state))
    monkeypatch.setenv("MEDEVAC_JOB_ID", "j")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the trainers: another number adds in another order
    yield made_
    torch.set_num_threads(threads)
    for path in made_.marks.glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.name), signal.SIGKILL)


def expected() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = made()
    for step in range(1, 5):
        one_step(model, optimizer, step)
    return model, optimizer


def assert_right(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Bit by bit, and the next step too."""
    wanted, theirs = expected()
    for _ in range(2):
        assert all(
            torch.equal(one, other)
            for one, other in zip(tensors(model, optimizer), tensors(wanted, theirs), strict=True)
        )
        one_step(model, optimizer, 5)
        one_step(wanted, theirs, 5)


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [optimizer.state[p][key] for p in model.parameters() for key in sorted(optimizer.state[p])]
    return [*model.state_dict().values(), *moments]


def test_the_next_attempt_loads_from_memory(job: Job) -> None:
    job.train()
    tier, model, optimizer = job.load()
    assert tier == "memory"
    assert_right(model, optimizer)


def flip(job: Job) -> None:
    offer = job.offer()
    with Path(f"/proc/{offer.pid}/fd/{offer.descriptor}").open("r+b") as held:
        held.seek(offer.regions[1].at + 3)
        byte = held.read(1)
        held.seek(-1, os.SEEK_CUR)
        held.write(bytes([byte[0] ^ 1]))


def kill(job: Job) -> None:
    os.kill(job.offer().pid, signal.SIGKILL)
    job.saver_gone(job.offer().pid)


def spoil(job: Job) -> None:
    path = job.marks / f"{FILE}.memory"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose(job: Job) -> None:
    (job.marks / f"{FILE}.memory").unlink()


def change_the_seal(job: Job) -> None:
    """The same step, sealed by somebody else with other content."""
    path = job.folder / "other"
    model, optimizer = made()
    for step in range(1, 5):
        one_step(model, optimizer, step)
    with pytest.MonkeyPatch.context() as alone:
        alone.delenv("MEDEVAC_STATE_DIR")
        manager = CheckpointManager(path, model, optimizer, extra={"one": Counted()}, job="j", attempt=1)
        assert manager.save(4, wait=True)
        manager.close()
    shutil.rmtree(job.newest)
    (path / "step_00000004").rename(job.newest)


class Counted:
    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state_dict: dict[str, int], /) -> None:
        assert state_dict == {"n": 1}


@pytest.mark.parametrize("hurt", [flip, kill, spoil, lose, change_the_seal])
def test_what_is_not_what_was_sealed_is_read_from_disk(job: Job, hurt: Callable[[Job], None]) -> None:
    job.train()
    hurt(job)
    tier, model, optimizer = job.load()
    assert tier == "disk"
    assert_right(model, optimizer)


def test_a_bad_file_is_found_though_memory_is_good(job: Job) -> None:
    job.train()
    (job.newest / ".metadata").write_bytes(b"spoilt")
    manager = CheckpointManager(job.folder, *made(), job="j", attempt=2)
    assert ".metadata" in manager.verify(job.newest)


def test_a_saver_leaves_when_nobody_comes(job: Job) -> None:
    job.train()
    pid = job.offer().pid
    job.acts(until=0.0)
    job.saver_gone(pid)
    assert not list(job.marks.iterdir())


def test_a_saver_leaves_when_a_later_checkpoint_is_sealed(job: Job) -> None:
    job.train()
    pid = job.offer().pid
    _, model, optimizer = job.load()
    manager = CheckpointManager(job.folder, model, optimizer, job="j", attempt=2)
    assert manager.save(6, wait=True)
    job.saver_gone(pid)
    assert job.offer().step == 6
    manager.close()
    assert not list(job.marks.iterdir())


def test_a_trainer_that_ends_in_order_leaves_no_saver(job: Job) -> None:
    job.train("closes")
    assert not list(job.marks.iterdir())
    assert job.load()[0] == "disk"
