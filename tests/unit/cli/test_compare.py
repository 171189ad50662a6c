"""`medevac compare` beside a Slurm whose accounting says what a test wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.scenario.script import read
from tests.scenario.world import World

from medevac.cli.main import main

SCENARIO = Path(__file__).parents[2] / "scenario" / "monitor_mode.jsonl"
BEGAN = 1_790_000_000
JOBS = """\
JobID|State|Submit|Start|End|User|UID
17|CANCELLED by 0|2026-09-21T14:00:00|2026-09-21T14:00:01|2026-09-21T14:20:00|kim|1000
"""
NODES = """\
NodeName|TimeStart|TimeEnd|State|Reason|User
node1|2026-09-21T14:18:20|Unknown|DRAIN|GPU 0 is bad|root(0)
node2|2026-09-21T14:20:00|Unknown|DRAIN|fan tray|root(0)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration in monitor mode, the log of a storm, and a Slurm's own folder."""
    (tmp_path / "state").mkdir()
    records = World(read(SCENARIO)).run()
    store = tmp_path / "state" / "log.jsonl"
    store.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    config = tmp_path / "medevac.toml"
    config.write_text(f'[slurm]\nprefix = "{tmp_path}"\n')
    return tmp_path


def says(site: Path, name: str, text: str, code: int = 0) -> None:
    (site / "bin").mkdir(exist_ok=True)
    (site / f"{name}.txt").write_text(text)
    program = site / "bin" / name
    program.write_text(f"#!/bin/sh\ncat {site}/{name}.txt\nexit {code}\n")
    program.chmod(0o755)


def ask(site: Path, *words: str) -> int:
    log = str(site / "state" / "log.jsonl")
    given = ("--since", str(BEGAN), "--config", str(site / "medevac.toml"), "--state-dir", log)
    return main(["compare", *given, *words])


def test_what_it_prints(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(site, "sacct", JOBS)
    says(site, "sacctmgr", NODES)
    assert ask(site) == 0
    first, second, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "since 2026-09-21 14:13:20Z: 1 agreed, 1 differed, 1 missed, 0 open"
    assert second.startswith("where both did the same, Medevac said it earlier by 4.8 min (median")
    assert [row.split("\t")[:2] for row in rows] == [["agreed", "node1"], ["differed", "train"], ["missed", "node2"]]
    assert rows[1].split("\t")[4] == "nothing"


def test_the_same_as_json(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(site, "sacct", JOBS)
    says(site, "sacctmgr", NODES)
    assert ask(site, "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"agreed": 1, "differed": 1, "missed": 1, "open": 0}
    agreed = told["rows"][0]
    assert (agreed["advice"]["what"], agreed["deed"]["who"]) == ("drain", "root")
    assert 280 < agreed["earlier_s"] < 300


def test_without_accounting_it_is_one_line_and_code_3(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(site, "sacct", "Slurm accounting storage is disabled", code=1)
    assert ask(site) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Slurm's accounting (slurmdbd), which is not there: sacct" in said


@pytest.mark.parametrize("option", ["--since", "--within"])
def test_a_time_that_is_none_is_named(site: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", option, "soon", "--config", str(site / "medevac.toml")]) == 2
    assert f"{option} soon: write" in capsys.readouterr().err
