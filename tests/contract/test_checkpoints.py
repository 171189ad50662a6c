"""Checkpoint folders on a file system against their contract, and against a file system that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import xxhash

from medevac.adapters import checkpoints as adapter
from medevac.adapters.checkpoint_files import CHUNK
from medevac.adapters.checkpoints import FolderCheckpoints
from medevac.core.actions import JudgeCheckpoint, PointClean, VerifyCheckpoint
from medevac.core.events import CheckpointFound, CheckpointJudged, CheckpointSealed
from medevac.core.seal import LINEAGE, SEAL, SealedFile, decode_seal, encode_seal, step_folder
from medevac.ports.errors import Unavailable
from medevac.testing.checkpoints_contract import JOB, CheckpointsContract, checkpoint


class TestFolderCheckpoints(CheckpointsContract):
    @pytest.fixture
    def checkpoints(self) -> FolderCheckpoints:
        return FolderCheckpoints(writer="store-1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint(tmp_path, 10)
    return tmp_path


JUDGE = JudgeCheckpoint(id="a", job=JOB, step=10, state="suspect")


@pytest.mark.parametrize("digits", [16, 32])
@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
async def test_both_lengths_of_xxh3_verify(tmp_path: Path, digits: int, size: int) -> None:
    data = os.urandom(size)
    place = checkpoint(tmp_path, 10, files={"x": data})
    digest = xxhash.xxh3_64(data) if digits == 16 else xxhash.xxh3_128(data)
    seal = decode_seal((place / SEAL).read_bytes())
    seal.files["x"] = SealedFile(size=size, hash=f"xxh3:{digest.hexdigest()}")
    (place / SEAL).write_bytes(encode_seal(seal))
    checkpoints = FolderCheckpoints(writer="s")
    action = VerifyCheckpoint(id="v", job=JOB, step=10)
    assert (await checkpoints.verify(action, str(tmp_path))).ok
    (place / "x").write_bytes(data[:-1] + b"!" if data[-1:] != b"!" and data else b"?")
    assert not (await checkpoints.verify(action, str(tmp_path))).ok


async def test_a_pipe_in_a_files_place_does_not_hang(folder: Path) -> None:
    file = folder / step_folder(10) / "model.npy"
    file.unlink()
    os.mkfifo(file)
    verified = await FolderCheckpoints(writer="s").verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(folder))
    assert verified.problem == "model.npy: is not a file"


async def test_another_stores_verdicts_are_events(folder: Path) -> None:
    await FolderCheckpoints(writer="one").judge(JUDGE, str(folder))
    events = await FolderCheckpoints(writer="two").scan(JOB, str(folder))
    assert [type(event) for event in events] == [CheckpointSealed, CheckpointJudged]
    assert len(await FolderCheckpoints(writer="one").scan(JOB, str(folder))) == 1


async def test_another_jobs_checkpoint_is_of_no_attempt_of_this_one(folder: Path) -> None:
    (event,) = await FolderCheckpoints(writer="s").scan("job-2", str(folder))
    assert isinstance(event, CheckpointSealed)
    assert (event.job, event.attempt) == ("job-2", 0)


async def test_a_scan_opens_only_what_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def reading(raw: bytes, step: int) -> object:
        opened.append(step_folder(step))
        return parsed(raw, step)

    parsed = adapter._parsed
    monkeypatch.setattr(adapter, "_parsed", reading)
    checkpoints = FolderCheckpoints(writer="s")
    for _ in range(3):
        await checkpoints.scan(JOB, str(folder))
    checkpoint(folder, 20)
    await checkpoints.scan(JOB, str(folder))
    assert opened == [step_folder(10), step_folder(20)]


async def test_a_line_that_is_no_verdict_is_skipped(folder: Path) -> None:
    (folder / LINEAGE).write_text('{"step": 10, "state": "condemnd"}\n\n[]\n{"step": 10, "state": "suspect"}\n')
    checkpoints = FolderCheckpoints(writer="s")
    assert await checkpoints.judged(str(folder)) == {10: "suspect"}


async def test_a_lineage_file_written_anew_is_read_anew(folder: Path) -> None:
    checkpoints = FolderCheckpoints(writer="s")
    (folder / LINEAGE).write_text('{"step": 10, "state": "suspect"}\n{"step": 20, "state": "suspect"}\n')
    assert await checkpoints.judged(str(folder)) == {10: "suspect", 20: "suspect"}
    (folder / LINEAGE).write_text('{"step": 10, "state": "clean"}\n')
    assert await checkpoints.judged(str(folder)) == {10: "clean"}
    (folder / LINEAGE).unlink()
    assert await checkpoints.judged(str(folder)) == {}


async def test_a_file_in_the_folders_place_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable, match="file"):
        await FolderCheckpoints(writer="s").scan(JOB, str(tmp_path / "file"))


async def test_a_full_disk_leaves_no_half_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = FolderCheckpoints(writer="s")
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 8:
            return write(fd, data[:8])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Unavailable, match="No space left"):
        await checkpoints.judge(JUDGE, str(folder))
    monkeypatch.undo()
    assert (folder / LINEAGE).read_bytes() == b""
    await checkpoints.judge(JUDGE, str(folder))
    assert await checkpoints.judged(str(folder)) == {10: "suspect"}


async def test_a_full_disk_leaves_the_old_pointer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = FolderCheckpoints(writer="s")
    checkpoint(folder, 20)
    await checkpoints.point(PointClean(id="p", job=JOB, step=10), str(folder))

    def full(self: Path, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(Unavailable, match="No space left"):
        await checkpoints.point(PointClean(id="q", job=JOB, step=20), str(folder))
    assert await checkpoints.pointed(str(folder)) == 10


async def test_a_seal_that_cannot_be_read_now_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = FolderCheckpoints(writer="s")

    def stale(self: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", stale)
        (event,) = await checkpoints.scan(JOB, str(folder))
    assert isinstance(event, CheckpointFound)
    assert [type(event) for event in await checkpoints.scan(JOB, str(folder))] == [CheckpointSealed]


async def test_a_file_system_that_went_away_is_no_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: Path, *, strict: bool = False) -> Path:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))

    monkeypatch.setattr(Path, "resolve", stale)
    with pytest.raises(Unavailable):
        await FolderCheckpoints(writer="s").verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(folder))
