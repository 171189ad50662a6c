"""`medevac checkpoints DIR --condemn STEP --why TEXT`: a person's verdict, which everything heeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.test_trace_part import folder

from medevac.cli.main import main
from medevac.core.seal import LINEAGE
from medevac.torch.lineage import newest_clean, survey


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
