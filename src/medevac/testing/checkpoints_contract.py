"""What every `Checkpoints` must do; subclass, and give a fixture `checkpoints`.

class TestMyCheckpoints(CheckpointsContract):
@pytest.fixture
def checkpoints(self):
return MyCheckpoints(...)
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from medevac.core.actions import JudgeCheckpoint, PointClean, VerifyCheckpoint
from medevac.core.events import CheckpointFound, CheckpointJudged, CheckpointSealed, SealRank
from medevac.core.seal import LATEST_CLEAN, LINEAGE, SEAL, CheckpointState, Seal, SealedFile, encode_seal, step_folder
from medevac.ports.checkpoints import Checkpoints
from medevac.ports.errors import Refused

JOB = "job-1"


def checkpoint(folder: Path, step: int, *, files: dict[str, bytes] | None = None, attempt: int = 1) -> Path:
    """Write a sealed checkpoint as a job would; returns its folder."""
    content = {"model.npy": b"weights of step %d" % step} if files is None else files
    place = folder / step_folder(step)
    for name, data in content.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    seal = Seal(
        job=JOB,
        attempt=attempt,
        step=step,
        parent=step - 10 if step > 10 else None,
        at=1000.0 + step,
        ranks=(SealRank(rank=0, node="node1", gpu_uuid="GPU-1"),),
        files={name: SealedFile(size=len(data), hash=sha256(data)) for name, data in content.items()},
    )
    place.mkdir(parents=True, exist_ok=True)
    (place / SEAL).write_bytes(encode_seal(seal))
    return place


def sha256(data: bytes) -> str:
    """A hash in the seal's form."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _judge(step: int, state: CheckpointState, id_: str = "a") -> JudgeCheckpoint:
    return JudgeCheckpoint(id=id_, job=JOB, step=step, state=state, reason="because", cause="incident-1")


class CheckpointsContract:
    """See `medevac.ports.checkpoints.Checkpoints`."""

    async def test_a_missing_folder_holds_nothing(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        nowhere = str(tmp_path / "nowhere")
        assert await checkpoints.scan(JOB, nowhere) == ()
        assert await checkpoints.pointed(nowhere) is None
        assert await checkpoints.judged(nowhere) == {}
        assert not (tmp_path / "nowhere").exists()

    async def test_a_sealed_checkpoint_is_seen_with_who_made_it(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 20)
        (event,) = await checkpoints.scan(JOB, str(tmp_path))
        assert isinstance(event, CheckpointSealed)
        assert (event.job, event.attempt, event.step, event.parent, event.at) == (JOB, 1, 20, 10, 1020.0)
        assert event.ranks == (SealRank(rank=0, node="node1", gpu_uuid="GPU-1"),)

    async def test_scanning_again_says_the_same(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        for step in (20, 10, 100_000_000):
            checkpoint(tmp_path, step)
        (tmp_path / "step_00000030").mkdir()
        first = await checkpoints.scan(JOB, str(tmp_path))
        assert [event.step for event in first if isinstance(event, CheckpointSealed)] == [10, 20, 100_000_000]
        assert await checkpoints.scan(JOB, str(tmp_path)) == first
        assert len({event.id for event in first}) == 4
        assert all(event.id for event in first)

    async def test_a_step_saved_again_is_another_event(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        (first,) = await checkpoints.scan(JOB, str(tmp_path))
        checkpoint(tmp_path, 10, attempt=12)
        (second,) = await checkpoints.scan(JOB, str(tmp_path))
        assert isinstance(second, CheckpointSealed)
        assert second.attempt == 12
        assert second.id != first.id

    async def test_a_removed_step_is_no_longer_there(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        place = checkpoint(tmp_path, 10)
        assert len(await checkpoints.scan(JOB, str(tmp_path))) == 1
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
        assert await checkpoints.scan(JOB, str(tmp_path)) == ()

    @pytest.mark.parametrize(
        ("seal", "why"),
        [
            (None, "No such file"),
            (b"", "truncated"),
            (b'{"job":"job-1","att', "truncated"),
            (b"\xff\x00garbage", "malformed"),
            (b'{"job":"j","attempt":1,"step":10,"schema":2}', "schema"),
            (b'{"job":"j","attempt":1,"step":30,"schema":1}', "seals step 30"),
            (b'{"job":"j","attempt":1,"step":"10","schema":1}', "step"),
            (b'{"job":"j","attempt":1,"step":10,"files":{"../x":{"size":1,"hash":"xxh3:0"}}}', "../x"),
        ],
    )
    async def test_without_a_readable_seal_lineage_is_unknown(
        self, checkpoints: Checkpoints, tmp_path: Path, seal: bytes | None, why: str
    ) -> None:
        place = tmp_path / step_folder(10)
        place.mkdir()
        if seal is not None:
            (place / SEAL).write_bytes(seal)
        (event,) = await checkpoints.scan(JOB, str(tmp_path))
        assert isinstance(event, CheckpointFound)
        assert (event.job, event.step) == (JOB, 10)
        assert f"{step_folder(10)}/{SEAL}" in event.why
        assert why in event.why
        verified = await checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(tmp_path))
        assert (verified.ok, SEAL in verified.problem) == (False, True)

    async def test_a_seal_that_comes_later_is_seen(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        (tmp_path / step_folder(10)).mkdir()
        (first,) = await checkpoints.scan(JOB, str(tmp_path))
        checkpoint(tmp_path, 10)
        (second,) = await checkpoints.scan(JOB, str(tmp_path))
        assert (type(first), type(second)) == (CheckpointFound, CheckpointSealed)

    async def test_what_is_as_sealed_verifies(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        names = ["model.npy", ".metadata", "a b/ü 🔥.pt", "quote'\"\\back", "new\nline", "-rf", "*", "rank0/rank0/x"]
        checkpoint(tmp_path, 10, files={name: name.encode() * 1000 for name in names} | {"empty": b""})
        verified = await checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(tmp_path))
        assert (verified.ok, verified.problem, verified.job, verified.step) == (True, "", JOB, 10)
        again = await checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(tmp_path))
        assert again.id == verified.id != ""

    @pytest.mark.parametrize("damage", ["cut", "longer", "bit", "gone"])
    async def test_any_change_is_found_and_named(self, checkpoints: Checkpoints, tmp_path: Path, damage: str) -> None:
        data = bytes(range(256)) * 5000
        file = checkpoint(tmp_path, 10, files={"a.npy": b"fine", "b.npy": data}) / "b.npy"
        flipped = data[:-7] + bytes([data[-7] ^ 4]) + data[-6:]
        changed = {"cut": data[:-1], "longer": data + b"\0", "bit": flipped, "gone": data}[damage]
        file.write_bytes(changed)
        if damage == "gone":
            file.unlink()
        verified = await checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(tmp_path))
        assert not verified.ok
        assert verified.problem.startswith("b.npy: ")

    async def test_a_link_out_of_the_folder_does_not_verify(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        place = checkpoint(tmp_path / "job", 10, files={"a.npy": b"secret"})
        (tmp_path / "outside").write_bytes(b"secret")
        (place / "a.npy").unlink()
        (place / "a.npy").symlink_to("../../outside")
        verified = await checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(tmp_path / "job"))
        assert not verified.ok
        assert "leaves the step folder" in verified.problem

    async def test_a_seal_of_nothing_does_not_verify(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10, files={})
        verified = await checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=10), str(tmp_path))
        assert not verified.ok

    async def test_a_verdict_is_written_once(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        await checkpoints.judge(_judge(10, "clean"), str(tmp_path))
        await checkpoints.judge(_judge(10, "clean"), str(tmp_path))
        lines = (tmp_path / LINEAGE).read_bytes().splitlines()
        assert len(lines) == 1
        verdict = msgspec.json.decode(lines[0])
        assert (verdict["step"], verdict["state"], verdict["why"], verdict["event"]) == (
            10,
            "clean",
            "because",
            "incident-1",
        )
        assert verdict["at"] > 0

    async def test_the_last_verdict_holds(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        states: tuple[CheckpointState, ...] = ("clean", "suspect", "condemned", "clean")
        for step in (10, 20):
            checkpoint(tmp_path, step)
        for state in states:
            await checkpoints.judge(_judge(10, state), str(tmp_path))
        await checkpoints.judge(_judge(20, "suspect"), str(tmp_path))
        assert await checkpoints.judged(str(tmp_path)) == {10: "clean", 20: "suspect"}
        assert len((tmp_path / LINEAGE).read_bytes().splitlines()) == 5

    async def test_own_verdicts_are_no_events_others_are(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        await checkpoints.judge(_judge(10, "clean"), str(tmp_path))
        assert [type(event) for event in await checkpoints.scan(JOB, str(tmp_path))] == [CheckpointSealed]
        line = b'{"step": 10, "state": "condemned", "why": "I looked at the loss"}\n'
        for _ in range(2):
            with (tmp_path / LINEAGE).open("ab") as fh:
                fh.write(line)
        _, *judged = await checkpoints.scan(JOB, str(tmp_path))
        assert [(type(event), getattr(event, "state", "")) for event in judged] == [(CheckpointJudged, "condemned")] * 2
        assert len({event.id for event in judged}) == 2
        assert await checkpoints.judged(str(tmp_path)) == {10: "condemned"}

    async def test_a_torn_last_line_spoils_nothing(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        checkpoint(tmp_path, 20)
        await checkpoints.judge(_judge(10, "suspect"), str(tmp_path))
        with (tmp_path / LINEAGE).open("ab") as fh:
            fh.write(b'{"step": 20, "state": "cle')
        assert await checkpoints.judged(str(tmp_path)) == {10: "suspect"}
        await checkpoints.judge(_judge(20, "condemned"), str(tmp_path))
        assert await checkpoints.judged(str(tmp_path)) == {10: "suspect", 20: "condemned"}
        await checkpoints.judge(_judge(20, "condemned"), str(tmp_path))
        assert (tmp_path / LINEAGE).read_bytes().count(b"\n") == 3

    async def test_the_pointer_is_a_relative_link(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        checkpoint(tmp_path, 20)
        assert await checkpoints.pointed(str(tmp_path)) is None
        for step in (20, 10, 10):
            await checkpoints.point(PointClean(id="p", job=JOB, step=step), str(tmp_path))
            assert await checkpoints.pointed(str(tmp_path)) == step
        assert (tmp_path / LATEST_CLEAN).readlink() == Path(step_folder(10))
        for _ in range(2):
            await checkpoints.point(PointClean(id="n", job=JOB, step=None), str(tmp_path))
            assert await checkpoints.pointed(str(tmp_path)) is None
        assert not (tmp_path / LATEST_CLEAN).is_symlink()
        await checkpoints.point(PointClean(id="p", job=JOB, step=10), str(tmp_path))
        assert {path.name for path in tmp_path.iterdir()} == {LATEST_CLEAN, step_folder(10), step_folder(20)}

    async def test_a_step_that_is_not_there_is_refused(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        for call in (
            checkpoints.verify(VerifyCheckpoint(id="v", job=JOB, step=20), str(tmp_path)),
            checkpoints.judge(_judge(20, "clean"), str(tmp_path)),
            checkpoints.point(PointClean(id="p", job=JOB, step=20), str(tmp_path)),
        ):
            with pytest.raises(Refused, match="step_00000020"):
                await call
        assert not (tmp_path / LINEAGE).exists()
        assert await checkpoints.pointed(str(tmp_path)) is None

    async def test_a_folder_in_the_pointers_place_is_refused(self, checkpoints: Checkpoints, tmp_path: Path) -> None:
        checkpoint(tmp_path, 10)
        (tmp_path / LATEST_CLEAN / "theirs").mkdir(parents=True)
        assert await checkpoints.pointed(str(tmp_path)) is None
        with pytest.raises(Refused, match=LATEST_CLEAN):
            await checkpoints.point(PointClean(id="p", job=JOB, step=10), str(tmp_path))
        assert (tmp_path / LATEST_CLEAN / "theirs").is_dir()
