"""Processes as Linux shows them in /proc: who they are, whose they are, and a signal that hits no other."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import cache
from pathlib import Path
from typing import NamedTuple

from medevac.adapters.schedulers.local.files import ProcessId

_PROC = Path("/proc")


class Process(NamedTuple):
    """One line of /proc/<pid>/stat. `started` counts clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    threads: int
    started: int

    @property
    def gone(self) -> bool:
        """Dead and only waiting for its parent to take notice (a leader that left its threads behind is not)."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def stopped(self) -> bool:
        """Stopped by a signal or a debugger: it will not act on any signal but SIGKILL."""
        return self.state in "Tt"


@cache
def boot() -> str:
    """What tells this boot of the machine from others."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def look(pid: int) -> Process | None:
    """The process with this pid now, None for none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold anything; fields are counted from behind it (proc(5): state is field 3).
    fields = text[text.rindex(")") + 2 :].split()
    return Process(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        started=int(fields[19]),
    )


def everyone() -> dict[int, Process]:
    """All processes, by pid."""
    found = (look(int(name)) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - half the time of iterdir
    return {process.pid: process for process in found if process}


def identify(pid: int) -> ProcessId:
    """Name a living process (raises ProcessLookupError for a dead one)."""
    process = look(pid)
    if process is None:
        raise ProcessLookupError(pid)
    return ProcessId(pid=pid, started=process.started, boot=boot())


def alive(who: ProcessId) -> Process | None:
    """The process, unless it is dead, or was of another boot, or its pid is another's now."""
    process = look(who.pid) if who.boot == boot() else None
    return process if process and process.started == who.started and not process.gone else None


def environment(pid: int) -> frozenset[bytes]:
    """The variables that a process was started with, as b"NAME=value"; empty where we may not look."""
    try:
        return frozenset((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()


def ancestors(pid: int, table: dict[int, Process]) -> set[int]:
    """The process and those above it."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def descendants(roots: set[int], table: dict[int, Process]) -> set[int]:
    """The roots and those below them."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, todo = set(roots), list(roots)
    while todo:
        fresh = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(fresh)
        todo.extend(fresh)
    return found


def send(process: Process, number: signal.Signals) -> None:
    """Signal this process and no later one with its pid. One that is gone, or is not ours to signal, is let be."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            now = look(process.pid)
            if now and now.started == process.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
