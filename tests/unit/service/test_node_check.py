"""`medevac node-check`: a fresh fault is one; what cannot be read, or is old, is none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from medevac.cli.main import main
from medevac.sim.lines import stamped

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
APPLICATION = "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=python, Graphics Exception"


def log(folder: Path, text: str, age_s: float = 5.0) -> Path:
    path = folder / "kern.log"
    path.write_text(stamped(text, "node3", time.time() - age_s))
    return path


def checked(path: Path, *words: str) -> int:
    return main(["node-check", "--node", "node3", "--kernel-log", str(path), *words])


def test_a_fresh_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(log(tmp_path, LOST)) == 1
    assert "Xid 79" in capsys.readouterr().out


def test_no_fault_of_the_node(tmp_path: Path) -> None:
    assert checked(log(tmp_path, LOST, age_s=3600)) == 0
    assert checked(log(tmp_path, APPLICATION)) == 0
    assert checked(log(tmp_path, "all is well")) == 0


def test_unknown_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path / "none") == 0
    assert "unknown" in capsys.readouterr().out
    os.mkfifo(tmp_path / "hangs")
    assert checked(tmp_path / "hangs") == 0
