"""The command line as a whole: unknown words are one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import importlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from medevac.cli.exits import Exit, worst
from medevac.cli.main import COMMANDS, Command, build, main


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["decod"], "unknown command 'decod': did you mean 'decode'?"),
        (["frobnicate"], "unknown command 'frobnicate': see: medevac --help"),
        (["decode", "--nope"], "--nope"),
        (["xid"], "CODE"),
        (["xid", "seven"], "seven"),
        (["xid", "999"], "Xid 999 is not in the catalog"),
        (["decode", "--severity", "bad", "x"], "severity"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("medevac: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_a_state_folder_that_may_not_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK and allowed(path, mode))
    assert main(["run", "--state-dir", str(tmp_path / "state"), "--", "true"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said == (
        f"medevac: {tmp_path / 'state'}: {tmp_path} may not be read and written; name another folder with --state-dir\n"
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == Exit.DONE
    text = capsys.readouterr().out
    assert all(command.name in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_there_and_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, function = command.target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert main([command.name, "--help"]) == Exit.DONE
    assert "Usage: medevac" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.DONE
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == Exit.DONE
    script = capsys.readouterr().out
    assert "decode" in script
    assert "incidents" in script


def test_asking_for_one_command_imports_no_other() -> None:
    code = "import sys; from medevac.cli.main import main; main(['xid', '79']); print('medevac.decode' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"


def test_build_has_all_commands() -> None:
    assert {command.name for command in COMMANDS} <= set(build())


def test_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m medevac.cli.main sxid 20034 | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.returncode in {0, 141}


def test_without_input_on_a_terminal_it_says_what_to_do() -> None:
    leader, follower = pty.openpty()
    argv = [sys.executable, "-m", "medevac.cli.main", "decode"]
    done = subprocess.run(argv, stdin=follower, capture_output=True, text=True, check=False, timeout=60)
    os.close(leader)
    os.close(follower)
    assert done.returncode == Exit.USAGE
    assert done.stderr == "medevac: no log given: name a file, or pipe one in: dmesg | medevac decode\n"


def test_unreadable_outranks_found() -> None:
    assert worst([Exit.FOUND, Exit.UNREADABLE, Exit.DONE]) == Exit.UNREADABLE
    assert worst([]) == Exit.DONE


def test_exit_codes_are_the_documented_ones() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "exit-codes.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(Exit)
