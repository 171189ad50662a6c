"""Telling a person."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from medevac.adapters.notify import CommandNotifier, LogNotifier, SeveralNotifiers
from medevac.core.actions import Page
from medevac.ports.errors import Unavailable

PAGE = Page(id="page-1", cause="incident-1", level="critical", text="GPU 3 of node1 is out")


def python(program: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program, *arguments)


async def test_a_command_gets_the_text_and_the_level(tmp_path: Path) -> None:
    program = "import os, sys; open(sys.argv[1], 'w').write(os.environ['MEDEVAC_PAGE_LEVEL'] + ' ' + sys.stdin.read())"
    await CommandNotifier(python(program, str(tmp_path / "told"))).page(PAGE)
    assert (tmp_path / "told").read_text() == "critical GPU 3 of node1 is out\n"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("/no/such/program",), "No such file"),
        (python("import sys; sys.exit(3)"), "exit code 3"),
    ],
)
async def test_a_command_that_fails_told_nobody(command: tuple[str, ...], problem: str) -> None:
    with pytest.raises(Unavailable, match=problem):
        await CommandNotifier(command).page(PAGE)


async def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(3600)"
    with pytest.raises(Unavailable, match="it was killed"):
        await CommandNotifier(python(program, str(tmp_path / "pid")), timeout_s=1.0).page(PAGE)
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_command_that_does_not_read_its_input_has_told(tmp_path: Path) -> None:
    await CommandNotifier(python("")).page(Page(id="p", level="info", text="x" * 200_000))
    assert not list(tmp_path.iterdir())


async def test_pages_are_lines_of_a_file(tmp_path: Path) -> None:
    notifier = LogNotifier(tmp_path / "log" / "pages.jsonl")
    await notifier.page(PAGE)
    await notifier.page(PAGE)
    first, _ = map(json.loads, (tmp_path / "log" / "pages.jsonl").read_text().splitlines())
    assert (first["level"], first["text"], first["action"]) == ("critical", PAGE.text, "page-1")


async def test_a_file_that_cannot_be_written_told_nobody(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Is a directory"):
        await LogNotifier(tmp_path).page(PAGE)


async def test_one_of_several_is_enough(tmp_path: Path) -> None:
    broken, good = LogNotifier(tmp_path), LogNotifier(tmp_path / "pages")
    await SeveralNotifiers([broken, good]).page(PAGE)
    assert (tmp_path / "pages").exists()
    with pytest.raises(Unavailable, match="Is a directory"):
        await SeveralNotifiers([broken]).page(PAGE)
    with pytest.raises(Unavailable, match="no notifier"):
        await SeveralNotifiers([]).page(PAGE)
