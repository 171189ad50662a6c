"""Nothing unfinished, no machine's paths, no broad except; the decisions on record are listed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT, SRC, kept_files, module_name, python_files
from tests.needs import need

TEXT = {".py", ".md", ".toml", ".sh", ".html", ".css", ".js", ".cfg", ".ini", ".yaml", ".yml", ".txt", ""}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|raise NotImplementedError|not implemented yet|lorem ipsum)\b")
MACHINE = re.compile(
    r"(?<![\w.])(/work/|/root/|/opt/wheels|/tmp/bash_jobs)"
    r"|\bshared/(DESIGN|STYLE|facts|fixtures|files)\b"
    r"|https?://[\w.-]*pythonhosted\.|/simple/?\b"
)
DATA = ROOT / "tests" / "data"


def texts() -> list[Path]:
    """What people wrote: recordings of the field in tests/data stay as they came."""
    need("a git checkout", present=(ROOT / ".git").exists())
    own = {Path(__file__).resolve(), ROOT / "LICENSE"}
    return [path for path in kept_files() if path.suffix in TEXT and path not in own and DATA not in path.parents]


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE], ids=["unfinished", "machine"])
def test_no_text_has_words_that_do_not_belong(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {hit.group()}"
        for path in texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (hit := pattern.search(line))
    ]
    assert found == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception` or `except BaseException`, that does not pass on what it caught."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


@pytest.mark.parametrize("path", python_files(SRC), ids=module_name)
def test_no_except_catches_everything(path: Path) -> None:
    """One that must (the loop's top, the edge to a user's training) says why in a comment with `noqa: BLE001`."""
    lines = path.read_text().splitlines()
    handlers = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ExceptHandler)]
    broad = [h.lineno for h in handlers if is_broad(h) and "noqa: BLE001" not in lines[h.lineno - 1]]
    assert broad == []


def test_every_adr_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    records = sorted(folder.glob("[0-9]*.md"))
    assert records
    for record in records:
        assert f"({record.name})" in index
        for part in ("## Context", "## Decision", "## Consequences"):
            assert part in record.read_text(), f"{record.name} lacks {part}"


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
    pages = [path for path in texts() if path.suffix == ".md"]
    dead = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in pages
        for target in link.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert pages
    assert dead == []
