"""The project's own tools do what the Makefile counts on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.architecture.sources import ROOT
from tests.needs import need
from tools import changelog, gen_docs
from tools.generators import state_machines


class Row(NamedTuple):
    source: str
    on: str
    target: str


def test_every_target_of_the_makefile_is_declared_and_the_house_ones_exist() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", text, re.MULTILINE)[1].replace("\\\n", " ").split())  # type: ignore[index]
    assert targets == phony
    assert {"help", "setup", "check", "test", "test-fast", "soak", "bench", "demo", "docs", "clean"} <= targets


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    assert "make check && make test" in (ROOT / ".ci" / "run").read_text().splitlines()


def test_a_stale_page_is_shown_as_a_difference() -> None:
    page = ROOT / "LICENSE"
    assert gen_docs.difference(page, page.read_text()) == ""
    assert "+one line more" in gen_docs.difference(page, page.read_text() + "one line more\n")


def test_what_is_missing_is_a_skip_here_and_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    need("msgspec")
    with pytest.raises(pytest.skip.Exception, match="no-such-program is missing"):
        need("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is missing"):
        need("no-such-program")


def test_change_fragments_are_well_named() -> None:
    assert changelog.mistakes() == []


def test_a_badly_named_fragment_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "CHANGES", tmp_path)
    (tmp_path / "thing.better.md").write_text("It is better.")
    (tmp_path / "other.fixed.md").write_text("\n")
    told = changelog.mistakes()
    assert len(told) == 2
    assert "other.fixed.md: is empty" in told[0]
    assert "thing.better.md: name it" in told[1]


def test_a_release_moves_the_fragments_under_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "CHANGELOG.md"
    log.write_text(f"# Changes\n\n{changelog.MARK}\n## 0.0.1\n")
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "hang.fixed.md").write_text("A hung rank is found.\n")
    monkeypatch.setattr(changelog, "CHANGES", tmp_path / "changes")
    monkeypatch.setattr(changelog, "LOG", log)
    changelog.release("0.1.0", "2026-01-31")
    assert log.read_text().splitlines()[3:] == [
        "", "## 0.1.0 (2026-01-31)", "", "### Fixed", "", "- A hung rank is found.", "", "## 0.0.1",
    ]  # fmt: skip
    assert changelog.fragments() == []


def test_a_machine_is_drawn_from_its_table() -> None:
    rows = (Row("soft-drained", "GpuReset", "healthy"),)
    assert "    soft_drained --> healthy: GpuReset" in state_machines.diagram(rows)
    assert state_machines.table(rows).splitlines()[-1] == "| soft-drained | GpuReset | healthy |"


def test_setup_says_what_to_do_when_python_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = ["/bin/bash", str(ROOT / "tools" / "setup"), str(old), str(tmp_path / "venv")]
    environment = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    for newer in ("python3.11", "python3.12", "python3.13", "python3.14"):
        (tmp_path / newer).symlink_to(old)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "older than Python 3.11" in done.stderr
    assert len(done.stderr.splitlines()) == 1
