"""`medevac checkpoints DIR --condemn|--clean STEP --why TEXT`: a person's verdict, in the lineage file."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import msgspec
import pytest
from tests.unit.cli.test_trace_part import folder

from medevac.cli.checkpoints import Read, _vouch
from medevac.cli.main import main
from medevac.cli.output import CommandError
from medevac.client.seal import seal
from medevac.core.events import CheckpointSealed, JobSubmitted, SealRank
from medevac.core.lineage import Doubt
from medevac.core.seal import LINEAGE, Seal
from medevac.core.view import View
from medevac.torch.lineage import judge, newest_clean, survey


def test_a_condemned_step_and_what_continues_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = folder(tmp_path / "ck")
    newest = newest_clean(where)
    assert newest is not None
    assert newest.name == "step_00000016"
    assert main(["checkpoints", str(where), "--condemn", "8", "--why", "loss is odd", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["state"]) for row in rows] == [(8, "condemned"), (16, "suspect")]
    assert "loss is odd" in rows[0]["why"]
    assert [one.state for one in survey(where)] == ["condemned", "suspect"]
    assert newest_clean(where) is None


@pytest.mark.parametrize(
    ("words", "says"), [(["8"], "--why"), (["8", "--why", " "], "--why"), (["7", "--why", "odd"], "8 and 16")]
)
def test_wrong_use_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    where = folder(tmp_path / "ck")
    assert main(["checkpoints", str(where), "--condemn", *words]) == 2
    assert says in capsys.readouterr().err
    assert not (where / LINEAGE).exists()


def test_a_suspect_step_that_a_person_vouches_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = folder(tmp_path / "ck")
    judge(where, [8, 16], "suspect", "a replica was wrong")
    assert newest_clean(where) is None
    assert main(["checkpoints", str(where), "--clean", "8", "--why", "evaluated by hand", "--json"]) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["state"] for line in said.out.splitlines()] == ["clean", "suspect"]
    assert "medevac release JOB --resume-from 8" in said.err
    assert newest_clean(where) == where / "step_00000008"
    line = json.loads((where / LINEAGE).read_text().splitlines()[-1])
    assert line["why"] == f"vouched for by {getpass.getuser()}: evaluated by hand"


@pytest.mark.parametrize(
    ("step", "says"),
    [("8", "it is condemned"), ("16", "it continues step 8"), ("24", "weights"), ("32", "only a suspect one")],
)
def test_what_nobody_can_vouch_for(tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str, says: str) -> None:
    where = folder(tmp_path / "ck")
    for number in (24, 32):
        place = where / f"step_{number:08d}"
        place.mkdir()
        (place / "weights").write_text("w")
        seal(place, Seal(job="j", attempt=1, step=number))
    judge(where, [8], "condemned", "not finite")
    judge(where, [24], "suspect", "a replica was wrong")
    (where / "step_00000024" / "weights").write_text("v")
    before = (where / LINEAGE).read_bytes()
    assert main(["checkpoints", str(where), "--clean", step, "--why", "trust me"]) == 2
    assert says in capsys.readouterr().err
    assert (where / LINEAGE).read_bytes() == before


def test_what_a_controller_itself_doubts_is_not_lifted() -> None:
    sealed = CheckpointSealed(at=5.0, job="j", attempt=1, step=8, ranks=(SealRank(rank=0, gpu_uuid="GPU-bad"),))
    view = View().apply(JobSubmitted(at=0.0, job="j"), 1).apply(sealed, 2)
    doubted = msgspec.structs.replace(
        view, doubts=view.doubts.set("GPU-bad", (Doubt(since=4.0, fault_at=9.0, why="x"),))
    )
    with pytest.raises(CommandError, match="`medevac release j --resume-from 8`"):
        _vouch(Read(job=doubted.jobs["j"], view=doubted, folder="ck", source="j"), 8, "trust me")
