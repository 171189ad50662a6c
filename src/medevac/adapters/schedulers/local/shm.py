"""Shared memory that a killed attempt leaves behind: nothing frees it, and the next attempt may run out of it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

KEPT = "medevac-"
"""Segments of checkpoint savers (`medevac-<job>-*`) are theirs to remove."""


def segments(folder: Path) -> tuple[str, ...]:
    """What is there now, each as `<inode>:<name>`: a name alone may be used again."""
    return tuple(sorted(f"{status.st_ino}:{path.name}" for path, status in _ours(folder)))


def sweep(folder: Path, before: tuple[str, ...]) -> list[str]:
    """Remove segments of this user that came after `before` and that no process has open; returns their names."""
    known = set(before)
    fresh = [
        path
        for path, status in _ours(folder)
        if f"{status.st_ino}:{path.name}" not in known and not path.name.startswith(KEPT)
    ]
    if not fresh:
        return []
    used = _in_use(folder)
    removed = [path for path in fresh if str(path) not in used]
    for path in removed:
        with contextlib.suppress(OSError):
            path.unlink()
    return [path.name for path in removed]


def _ours(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                    found.append((path, status))
    return found


def _in_use(folder: Path) -> set[str]:
    """Files of the folder that a process of ours has mapped or open."""
    prefix, used = f"{folder}/", set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (process / "maps").read_text(errors="surrogateescape").splitlines()
            used |= {line[at:] for line in lines if (at := line.find(prefix)) >= 0}
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used.add(str(descriptor.readlink()))
    return used
