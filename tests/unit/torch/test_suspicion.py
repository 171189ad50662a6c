"""Doubt that must not be lost on its way, and requests and disks that come at a bad moment."""

from __future__ import annotations

import math
import os
import resource
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from medevac.client import Client, Request
from medevac.client.link import NoLink
from medevac.core.events import StepReported
from medevac.core.seal import SEAL, Seal, encode_seal
from medevac.torch import CheckpointManager, Guard, Stop, lineage, saver
from medevac.torch.ecc import EccWatch
from medevac.torch.links import Chain
from medevac.torch.place import Place, here
from medevac.torch.wire import Reader, Save, Saved, readable, send

pytestmark = pytest.mark.e2e


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def sealed(folder: Path, step: int, parent: int | None) -> None:
    path = folder / f"step_{step:08d}"
    path.mkdir(parents=True)
    (path / SEAL).write_bytes(encode_seal(Seal(job="", attempt=0, step=step, parent=parent, at=time.time())))


def states(folder: Path) -> dict[int, str]:
    return {known.step: known.state for known in lineage.survey(folder)}


def test_what_continued_a_suspect_one_stays_suspect_when_that_is_replaced(tmp_path: Path) -> None:
    for step, parent in ((1, None), (2, 1), (3, 2), (4, 3)):
        sealed(tmp_path, step, parent)
    lineage.judge(tmp_path, [2], "suspect", "a test")
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer)
    manager.parent = 1
    assert manager.save(2, wait=True)  # done again from step 1, by an attempt that ends before step 3
    manager.close()
    assert states(tmp_path) == {1: "clean", 2: "clean", 3: "suspect", 4: "suspect"}
    assert lineage.newest_clean(tmp_path) == tmp_path / "step_00000002"


def test_doubt_that_comes_while_a_checkpoint_is_written_is_on_it(tmp_path: Path) -> None:
    captured_at = time.time()
    staging = tmp_path / ".saving-step_00000005.t"
    staging.mkdir()
    lineage.judge(tmp_path, [5], "suspect", "an uncorrected error")
    draft = Seal(job="", attempt=0, step=5, at=captured_at)
    save = Save(step=5, slot=0, folder=str(tmp_path), tag="t", hashes=(), seal=draft)
    assert saver.finish(staging, save, "__0_0.distcp", saver.Part()) == ""
    assert states(tmp_path) == {5: "suspect"}
    assert lineage.newest_clean(tmp_path) is None


def test_doubt_of_an_earlier_attempt_is_not_on_what_is_written_now(tmp_path: Path) -> None:
    lineage.judge(tmp_path, [5], "suspect", "the step 5 of an attempt that was given up")
    staging = tmp_path / ".saving-step_00000005.t"
    staging.mkdir()
    draft = Seal(job="", attempt=1, step=5, at=time.time())
    save = Save(step=5, slot=0, folder=str(tmp_path), tag="t", hashes=(), seal=draft)
    assert saver.finish(staging, save, "__0_0.distcp", saver.Part()) == ""
    assert states(tmp_path) == {5: "clean"}


def test_an_uncorrected_error_doubts_what_is_not_sealed_yet(tmp_path: Path) -> None:
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path, every_steps=1, overlap="wait")
    watch = EccWatch("GPU-1", [sys.executable, "-c", ""])
    watch.first, watch.count = 0, 1
    steps = guard.steps(0, 5)
    next(steps)
    model(torch.ones(1, 8)).sum().backward()
    guard.backward_done()
    optimizer.step()
    guard.end_step()
    guard._ecc = watch
    watch.sound_at = 0.0
    with pytest.raises(Stop) as stop:
        next(steps)
    guard.close()
    assert stop.value.code == 84
    assert states(tmp_path) == {1: "suspect"}
    assert lineage.newest_clean(tmp_path) is None


class Asks(Client):
    """Asks for a checkpoint once, at a given step."""

    def __init__(self, at: int) -> None:
        super().__init__(NoLink())
        self._left = at

    def request(self) -> Request | None:
        self._left -= 1
        return "checkpoint" if self._left == -1 else None


def test_a_request_at_a_step_that_is_rolled_back_is_kept(tmp_path: Path) -> None:
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path, every_steps=2, overlap="wait", client=Asks(5))
    spoilt = 0

    def train() -> None:
        nonlocal spoilt
        for step in guard.steps(0, 50):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 8)).square().sum()
            loss.backward()
            if step == 5 and not spoilt:
                spoilt += 1
                gradient = next(model.parameters()).grad
                assert gradient is not None
                gradient[0, 0] = math.nan
            guard.backward_done()
            optimizer.step()
            guard.end_step(loss=loss)

    with pytest.raises(Stop) as stop:
        train()
    guard.close()
    assert stop.value.code == 83
    assert spoilt == 1
    assert lineage.newest_clean(tmp_path) == tmp_path / "step_00000005"


def test_a_folder_that_cannot_be_read_ends_all_ranks_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path)

    def stale(*_: object) -> None:
        raise OSError(116, "Stale file handle", str(tmp_path))

    monkeypatch.setattr(lineage, "newest_clean", stale)
    with pytest.raises(Stop, match="Stale file handle") as stop:
        guard.resume()
    guard.close()
    assert stop.value.code == 85


def test_a_descriptor_over_1023_is_listened_to() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    ours, theirs = socket.socketpair()
    try:
        high = socket.socket(fileno=os.dup2(ours.fileno(), 2000))
        with high, theirs:
            assert not readable(high)
            send(theirs, Saved(step=1, slot=0))
            assert readable(high, 5.0)
            assert list(Reader(high, wait=False).read()) == [Saved(step=1, slot=0)]
    finally:
        ours.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_rank_whose_saver_is_gone_holds_up_no_other(tmp_path: Path) -> None:
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer, place=Place(rank=1))
    manager.save(5)  # agrees on a plan; of a replicated state rank 1 writes nothing
    assert manager._plan
    manager._fail(5, "its saver ended before it was written")
    staging = tmp_path / f".saving-step_00000005.{manager._plan.tag}"
    draft = Seal(job="", attempt=0, step=5, at=time.time())
    save = Save(step=5, slot=0, folder=str(tmp_path), tag="t", hashes=(), seal=draft, writers=(0, 1))
    assert saver.finish(staging, save, "__0_0.distcp", saver.Part()) == (
        "__1_0.distcp: its saver ended before it was written"
    )
    assert not staging.exists()


def test_a_model_that_is_not_the_wrapped_one_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Chain(()).attach(nn.Linear(2, 2))
    assert "neither DDP nor FSDP2" in caplog.text


def test_a_guard_before_its_process_group_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert here({"RANK": "1", "WORLD_SIZE": "2"}).rank == 1
    assert "no process group yet" in caplog.text
    caplog.clear()
    here({"RANK": "0", "WORLD_SIZE": "1"})
    assert not caplog.text


def test_a_file_that_cannot_be_read_now_condemns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path)
    assert guard.checkpoints
    assert guard.checkpoints.save(3, wait=True)

    def stale(path: Path, *_: object) -> tuple[int, str]:
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(lineage, "hash_file", stale)
    with pytest.raises(Stop, match="Stale file handle") as stop:
        guard.resume()
    guard.close()
    assert stop.value.code == 85
    assert states(tmp_path) == {3: "clean"}


def test_a_file_that_is_gone_condemns_its_checkpoint(tmp_path: Path) -> None:
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path)
    assert guard.checkpoints
    assert guard.checkpoints.save(3, wait=True)
    (tmp_path / "step_00000003" / "__0_0.distcp").unlink()
    assert guard.resume().path is None
    guard.close()
    assert states(tmp_path) == {3: "condemned"}


def test_the_first_heartbeat_says_who_the_rank_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MEDEVAC_NODE", "n2"), ("MEDEVAC_GPU", "GPU-1"), ("MEDEVAC_PCI", "0000:3b:00.0")):
        monkeypatch.setenv(name, value)
    told: list[StepReported] = []
    link = NoLink()
    monkeypatch.setattr(link, "send", lambda packet: told.append(msgspec.json.decode(packet, type=StepReported)))
    model, optimizer = made()
    Guard(model, optimizer, client=Client(link)).close()
    where = told[0].phase, told[0].node, told[0].gpu, told[0].pci, told[0].local_rank
    assert where == ("start", "n2", "GPU-1", "0000:3b:00.0", 0)
    assert told[0].memory is not None
    assert told[0].memory > 1 << 20


def unsealed(folder: Path) -> Path:
    """Two checkpoints, of steps 1 and 2; the seal of the newer one is not there."""
    model, optimizer = made()
    manager = CheckpointManager(folder, model, optimizer)
    assert manager.save(1, wait=True)
    assert manager.save(2, wait=True)
    manager.close()
    (folder / "step_00000002" / SEAL).unlink()
    return folder / "step_00000002"


def resume(folder: Path, told: Path | None) -> Path | None:
    model, optimizer = made()
    client = Client(NoLink(), job="j", attempt=2)
    client.resume_from = told
    guard = Guard(model, optimizer, checkpoint_dir=folder, client=client)
    try:
        return guard.resume().path
    finally:
        guard.close()


def test_one_without_a_seal_is_loaded_where_medevac_names_it(tmp_path: Path) -> None:
    path = unsealed(tmp_path)
    assert resume(tmp_path, path) == path
    assert lineage.newest_clean(tmp_path) == tmp_path / "step_00000001"  # and without an order it is passed over
    assert resume(tmp_path, None) is None


def test_a_torn_seal_is_no_missing_seal(tmp_path: Path) -> None:
    path = unsealed(tmp_path)
    (path / SEAL).write_text("{")
    with pytest.raises(Stop, match="no seal that can be read") as stop:
        resume(tmp_path, path)
    assert stop.value.code == 86


def test_a_seal_that_cannot_be_looked_at_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unsealed(tmp_path)

    def stale(*_: object) -> bool:
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(lineage, "unsealed", stale)
    with pytest.raises(Stop, match="Stale file handle") as stop:
        resume(tmp_path, path)
    assert stop.value.code == 85


def test_without_lineage_the_newest_that_is_not_condemned_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEDEVAC_LINEAGE", "none")
    path = unsealed(tmp_path)
    assert resume(tmp_path, None) == path
    path.rename(tmp_path / "gone")
    first = tmp_path / "step_00000001"
    lineage.judge(tmp_path, [1], "suspect", "a test")
    assert resume(tmp_path, None) == first
    (first / "__0_0.distcp").write_bytes(b"spoilt")
    assert resume(tmp_path, None) is None
    assert states(tmp_path) == {1: "condemned"}


class Holds:
    """An `extra` with one thing in its state."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def state_dict(self) -> dict[str, object]:
        return {"thing": self.thing}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.thing = state["thing"]


def test_a_state_that_cannot_be_pickled_is_named_at_the_first_save(tmp_path: Path) -> None:
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer, extra={"loader": Holds(threading.Lock())})
    with pytest.raises(TypeError, match=r"extra\.loader\.thing cannot be pickled"):
        manager.save(1)
    manager.close()
    assert lineage.newest_clean(tmp_path) is None


def test_all_ranks_hear_of_rank_0s_state_that_cannot_be_pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer, place=Place(rank=1, world=2))
    problem = "extra.loader.thing cannot be pickled"
    monkeypatch.setattr(manager, "_gathered", lambda mine: [(Place(world=2), [], "t", problem), mine])
    with pytest.raises(TypeError, match=r"extra\.loader\.thing"):
        manager.save(1)
    manager.close()


def test_one_that_becomes_so_later_costs_the_checkpoint_only(tmp_path: Path) -> None:
    model, optimizer = made()
    loader = Holds(1)
    manager = CheckpointManager(tmp_path, model, optimizer, extra={"loader": loader})
    assert manager.save(1, wait=True)
    loader.thing = threading.Lock()
    assert not manager.save(2, wait=True)
    assert "extra.loader.thing" in manager.failed[2]
    loader.thing = 3
    assert manager.save(3, wait=True)
    manager.close()
    assert states(tmp_path) == {1: "clean", 3: "clean"}
    assert [known.seal.parent for known in lineage.survey(tmp_path)] == [None, 1]
