"""The layers hold, and each foreign client has one home (the contracts stand in pyproject.toml)."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT, SRC, module_name, python_files

IN_JOB = {
    "torch": ("medevac.torch", "medevac.client", "medevac.ports", "medevac.core"),
    "client": ("medevac.client", "medevac.ports", "medevac.core"),
}


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or "lint-imports"
    command = [program, "--no-cache"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=170)


def test_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_contracts_are_those_of_the_plan() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {"layers", "in-job", "pure-core", "one-home-sql", "one-home-nvml"} <= {c["id"] for c in contracts}


@pytest.mark.parametrize("part", IN_JOB)
def test_in_job_part_imports_only_what_a_training_may_carry(part: str) -> None:
    strays = [
        f"{module_name(path)} line {node.lineno}: {node.module}"
        for path in python_files(SRC / "medevac" / part)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("medevac.")
        and not (node.module or "").startswith(IN_JOB[part])
    ]
    assert strays == []
