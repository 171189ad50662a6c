"""Where the project's files are, for the tests that read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


def python_files(folder: Path) -> list[Path]:
    """All Python files below a folder, in order."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def module_name(path: Path) -> str:
    """The dotted name that a file under src is imported by."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def kept_files() -> list[Path]:
    """The files that version control keeps, or would (untracked ones that are not ignored)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({path for name in listed if name and (path := ROOT / name).is_file()})
