"""Law 1: deciding is pure. The core imports and calls nothing that has a clock, does I/O or throws dice."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.sources import SRC, module_name, python_files

CORE = SRC / "medevac" / "core"

# Besides itself the core may import these, and of `datetime` and `hashlib` only what takes its input as a parameter.
ALLOWED = {
    "__future__", "abc", "base64", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "enum",
    "fnmatch", "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "re", "statistics",
    "string", "types", "typing", "zlib",
    "immutables", "msgspec", "xxhash",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
IMPURE_METHODS = {"now", "utcnow", "today", "urandom", "read_text", "write_text"}
POISONED = (
    "asyncio", "concurrent.futures", "logging", "multiprocessing", "pathlib", "random", "secrets", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "urllib.request",
)  # fmt: skip


def imported(tree: ast.Module) -> set[str]:
    """The top names of all imports, those inside functions too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add((node.module or "").split(".")[0])
    return names


def imported_medevac(tree: ast.Module) -> set[str]:
    return {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "medevac"
    }


def impure_calls(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in IMPURE_CALLS:
            found.append(f"line {node.lineno}: {function.id}()")
        if isinstance(function, ast.Attribute) and function.attr in IMPURE_METHODS:
            found.append(f"line {node.lineno}: .{function.attr}()")
    return found


@pytest.mark.parametrize("path", python_files(CORE), ids=module_name)
def test_core_module_imports_nothing_impure(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert imported(tree) - {"medevac"} <= ALLOWED
    outside = {name for name in imported_medevac(tree) if not name.startswith("medevac.core") and name != "medevac"}
    assert not outside


@pytest.mark.parametrize("path", python_files(CORE), ids=module_name)
def test_core_module_calls_nothing_impure(path: Path) -> None:
    assert impure_calls(ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", python_files(CORE), ids=module_name)
def test_core_module_keeps_no_state_between_calls(path: Path) -> None:
    """No `global` and no `nonlocal`: what a call leaves behind would make the next one differ."""
    tree = ast.parse(path.read_text())
    kept = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal)]
    assert kept == []


def test_core_works_where_clock_and_io_are_poisoned() -> None:
    """Import all of it in a process in which whoever imports an impure module gets an error.

    msgspec and what it brings along load before the poison: the point is what the core itself reaches for.
    """
    modules = [module_name(path) for path in python_files(CORE)]
    program = f"""
import importlib, sys
import immutables, msgspec, msgspec.structs, xxhash, typing, re, json, hashlib, statistics, functools, datetime, enum
for name in {POISONED!r}:
    sys.modules[name] = None
for name in {modules!r}:
    importlib.import_module(name)
print("all", len({modules!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["all", str(len(modules))]
