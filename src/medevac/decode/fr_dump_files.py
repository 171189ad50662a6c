"""Dumps of a job from files and folders, and what they say as a clue for a diagnosis."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from medevac.core.diagnose_case import Cause, Clue
from medevac.core.flight_recorder import Stall, Trace, analyse
from medevac.decode.fr_dump import BadDump, read_dump


class Dumps(msgspec.Struct, frozen=True, kw_only=True):
    """Traces by rank, and why other files were left out."""

    traces: dict[int, Trace]
    unread: tuple[str, ...]


def read_dumps(paths: Iterable[Path]) -> Dumps:
    """Read files, and the files of folders; `-` is standard input. One that is no dump costs no other."""
    traces: dict[int, Trace] = {}
    unread: list[str] = []
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_dir():
                continue
            try:
                content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
                trace = read_dump(str(file), content)
                traces[trace.rank] = trace
            except (BadDump, OSError) as error:
                unread.append(str(error) if isinstance(error, BadDump) else f"{file}: {error.strerror}")
    return Dumps(traces=traces, unread=tuple(unread))


def recorder_clues(folder: Path) -> list[Clue]:
    """The clues of a folder of dumps. Raises OSError where it is none, or holds no dump."""
    dumps = read_dumps([folder])
    if not dumps.traces:
        raise OSError(f"{folder}: no flight-recorder dump in it{': ' + dumps.unread[0] if dumps.unread else ''}")
    return stall_clues(str(folder), analyse(dumps.traces))


def stall_clues(name: str, stall: Stall) -> list[Clue]:
    """A stall in the words of a diagnosis: only a mismatch of calls names a cause, the rest name who is waited for."""
    if stall.held == "none":
        return []
    cause: Cause | None = "user-code" if stall.held == "mismatch" else None
    where = f" at {stall.place}" if stall.place else ""
    return [
        Clue(
            signature=f"flight-recorder-{stall.held}",
            role="root" if cause else "symptom",
            symptom="hang",
            names="rank",
            cause=cause,
            weight=84 if cause else 0,
            file=name,
            text=f"group {stall.group}, {stall.op} number {stall.seq}{where}: rank {rank} {stall.why}"
            if rank is not None
            else f"group {stall.group}, {stall.op} number {stall.seq}{where}: {stall.why}",
            rank=rank,
        )
        for rank in (stall.ranks or (None,))
    ]
