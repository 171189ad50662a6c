"""The Python stacks of processes, by py-spy (the extra `stacks`), run as child processes with one deadline for all.

py-spy reads the memory of the process and, told so, does not stop it: what is read of one that runs may be torn, of one
that waits it is right. It needs the right to trace the process (same user, and ptrace_scope 0 or CAP_SYS_PTRACE).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from medevac.core.stacks import Frame

DEADLINE_S = 2.0
MOST = 16
"""Processes of one node that are looked at: one a GPU."""
MAIN = "MainThread"


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None


def program() -> str | None:
    """Where py-spy is: beside our Python, or on the path; None where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def read_stacks(pids: Mapping[int, int], deadline_s: float = DEADLINE_S) -> dict[int, tuple[Frame, ...]]:
    """By rank the main thread of its process, innermost frame first; a rank that cannot be read is left out."""
    spy = program()
    if spy is None:
        return {}
    ends = time.monotonic() + deadline_s
    children = {
        rank: subprocess.Popen(
            [spy, "dump", "--json", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank, pid in sorted(pids.items())[:MOST]
    }
    found = {}
    for rank, child in children.items():
        if frames := _frames(_answer(child, ends)):
            found[rank] = frames
    return found


def _answer(child: subprocess.Popen[bytes], ends: float) -> bytes:
    try:
        out, _ = child.communicate(timeout=max(ends - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=0.2)
        return b""
    return out if child.returncode == 0 else b""


def _frames(answer: bytes) -> tuple[Frame, ...]:
    try:
        threads = msgspec.json.decode(answer, type=list[_Thread])
    except msgspec.DecodeError:
        return ()
    main = next((thread for thread in threads if thread.thread_name == MAIN), threads[0] if threads else None)
    return tuple(Frame(name=f.name, file=f.filename, line=f.line) for f in main.frames) if main else ()
