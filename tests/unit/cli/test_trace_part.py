"""`medevac trace GPU --since T`: by the seals of a folder, or of the jobs of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medevac.cli.main import main
from medevac.client.seal import seal
from medevac.core.events import CheckpointSealed, JobSubmitted, SealRank
from medevac.core.jobs import Job
from medevac.core.progress import Pace
from medevac.core.seal import Seal, step_folder
from medevac.core.trace import Traced, trace

BAD, GOOD, OTHER = "GPU-bad", "GPU-good", "GPU-other"


def job(*seals: tuple[int, int | None, float, tuple[str, ...]]) -> Job:
    """Checkpoints as (step, parent, sealed at, GPUs by rank)."""
    made = Job(spec=JobSubmitted(at=0.0, job="j"), pace=Pace())
    for step, parent, at, gpus in seals:
        ranks = tuple(SealRank(rank=rank, node=f"n{rank}", gpu_uuid=gpu) for rank, gpu in enumerate(gpus))
        made = made.apply(CheckpointSealed(at=at, job="j", attempt=1, step=step, parent=parent, ranks=ranks))
    return made


def traced(part: str, since: float) -> Traced:
    """The bad GPU takes part in 20 and 30, is replaced, and 40 continues; 50 starts again from 10."""
    known = job(
        (10, None, 1.0, (GOOD, BAD)),
        (20, 10, 2.0, (GOOD, BAD)),
        (30, 20, 3.0, (GOOD, BAD)),
        (40, 30, 4.0, (GOOD, OTHER)),
        (50, 10, 5.0, (GOOD, OTHER)),
    )
    return trace("j", known.checkpoints, part, since)


def test_what_it_took_part_in_and_what_continues_that() -> None:
    found = traced(BAD, since=1.5)
    assert [(one.step, one.why) for one in found.checkpoints] == [
        (20, "it took part"),
        (30, "it took part"),
        (40, "it continues step 30"),
    ]
    assert (found.steps, found.ranks, found.attempts) == (((11, 40),), (1,), (1,))


def test_all_of_it_without_a_time_and_nothing_after_the_last() -> None:
    assert [one.step for one in traced(BAD, since=0.0).checkpoints] == [10, 20, 30, 40, 50]
    assert traced(BAD, since=3.5).checkpoints == ()
    assert traced("GPU-none", since=0.0).checkpoints == ()


def test_a_node_is_traced_too() -> None:
    assert [one.step for one in traced("n1", since=4.5).checkpoints] == [50]


def folder(path: Path) -> Path:
    for step, gpu in ((8, GOOD), (16, BAD)):
        made = path / step_folder(step)
        made.mkdir(parents=True)
        (made / "weights").write_text("w")
        seal(
            made, Seal(job="j", attempt=1, step=step, parent=step - 8 or None, ranks=(SealRank(rank=0, gpu_uuid=gpu),))
        )
    for name, step in (("export/first", 8), ("export/best", 16)):
        (path / name).mkdir(parents=True)
        (path / name / "model").write_text("m")
        seal(path / name, Seal(job="j", attempt=1, step=step))
    return path


def test_a_folder_with_its_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(folder(tmp_path / "ck"))
    assert main(["trace", BAD, "--since", "1h", "--checkpoint-dir", where, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert ([one["step"] for one in found["checkpoints"]], found["exports"]) == ([16], ["export/best"])
    assert main(["trace", BAD, "--checkpoint-dir", where]) == 1
    told = capsys.readouterr().out
    assert "steps 9 to 16" in told
    assert "exported from one of them: export/best" in told


def test_nothing_found_and_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(folder(tmp_path / "ck"))
    assert main(["trace", OTHER, "--checkpoint-dir", where]) == 0
    assert OTHER in capsys.readouterr().out
    assert main(["trace", BAD, "--checkpoint-dir", str(tmp_path / "none")]) == 2
    assert main(["trace", BAD, "--since", "yesterday", "--checkpoint-dir", where]) == 2
    assert main(["trace", BAD, OTHER, "--since", "1h"]) == 2
    assert main(["trace", BAD, "--state-dir", str(tmp_path)]) == 2
