"""Small files and functions; nothing heavy in the repository."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT, SRC, kept_files, module_name, python_files
from tests.needs import need

MOST_LINES = 400
LONGEST_FUNCTION = 50
HEAVIEST_BYTES = 1_000_000


@pytest.mark.parametrize("path", python_files(SRC), ids=module_name)
def test_module_is_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < MOST_LINES
    long = [
        f"{node.name}: {length} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) >= LONGEST_FUNCTION
    ]
    assert long == []


def test_no_file_is_heavy() -> None:
    need("a git checkout", present=(ROOT / ".git").exists())
    heavy = [str(path.relative_to(ROOT)) for path in kept_files() if path.stat().st_size > HEAVIEST_BYTES]
    assert heavy == []
