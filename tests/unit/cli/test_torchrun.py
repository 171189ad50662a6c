"""torchrun is started in the form that passes exit codes on; what cannot be is left as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from medevac.cli.output import CommandError
from medevac.cli.torchrun import passing_codes_on
from medevac.cli.warm import check_warm, warmed
from medevac.core.events import JobPolicy


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_torchrun_is_replaced_and_said(bin_: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bin_ / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_ / "python").chmod(0o755)
    ours = (str(bin_ / "python"), "-m", "medevac.torch.run", "--nproc-per-node", "2", "t.py")
    assert passing_codes_on(("torchrun", "--nproc-per-node", "2", "t.py")) == ours
    assert "passes the ranks' exit codes on" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["torch.distributed.run", "torch.distributed.launch"])
def test_its_modules_too(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = passing_codes_on((sys.executable, "-m", module, "t.py"))
    assert found == (sys.executable, "-m", "medevac.torch.run", "t.py")
    assert "exit codes on" in capsys.readouterr().err


def test_an_environment_without_medevac_keeps_its_own(bin_: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bin_ / "python").write_text("#!/bin/sh\nexit 1\n")
    (bin_ / "python").chmod(0o755)
    assert passing_codes_on(("torchrun", "t.py")) == ("torchrun", "t.py")
    assert "has no Medevac" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("python", "t.py"), ("sh", "-c", "torchrun t.py"), ("/no/torchrun", "t.py"), ()])
def test_other_commands_stay(command: tuple[str, ...]) -> None:
    assert passing_codes_on(command) == command


def test_warm_is_refused_where_it_could_never_be() -> None:
    with pytest.raises(CommandError, match="needs `python"):
        check_warm(JobPolicy(warm=True), ("bash", "train.sh"))
    with pytest.raises(CommandError, match="with --warm only"):
        check_warm(JobPolicy(warm_imports=("numpy",)), ("python", "t.py"))
    check_warm(JobPolicy(warm=True), ("python", "t.py"))


def test_the_command_line_adds_to_the_policy() -> None:
    policy = warmed(JobPolicy(warm_imports=("a", "b")), wanted=True, imports=("b", "c"))
    assert policy == JobPolicy(warm=True, warm_imports=("a", "b", "c"))
