"""Many inputs: paths, globs, folders and stdin to one row of events, several files at once where that pays."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from medevac.core.events import FaultSeen
from medevac.decode.context import Context
from medevac.decode.export import SIGN, decode_export
from medevac.decode.readers import Log, Progress, Unreadable, open_path, open_stream, reason
from medevac.decode.stream import decode_stream
from medevac.decode.years import HEAD, report_date, settled

STDIN = "-"
_WORTH_A_PROCESS = 200_000_000  # bytes in all; less is read faster than processes start


def _raise(problem: Unreadable) -> None:
    raise problem


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How inputs are read.

    `unreadable` is called for each input that cannot be read (wholly or on): the others are still done; by default it
    raises. `progress` gets bytes as stored. `jobs`: processes at most, 0 for one a core. `node`: host of lines that
    name none. `offset`: seconds that local times are ahead of UTC.
    """

    recursive: bool = False
    jobs: int = 0
    node: str = ""
    offset: float = 0.0
    progress: Progress | None = None
    unreadable: Callable[[Unreadable], None] = _raise


def decode_files(paths: Iterable[str], *, options: Options | None = None) -> Iterator[FaultSeen]:
    """The events of all inputs, file after file, each in its own order.

    A path may be a file of any form that `readers` knows, a glob, a folder (with `recursive`), or `-` for stdin.
    """
    chosen = options or Options()
    names = list(expand(paths, chosen))
    jobs = min(chosen.jobs or os.cpu_count() or 1, len(names))
    if jobs > 1 and STDIN not in names and total_size(names) >= _WORTH_A_PROCESS:
        from medevac.decode.workers import in_parallel

        events = in_parallel(names, jobs, chosen.node, chosen.offset, chosen.progress, chosen.unreadable)
    else:
        events = (event for name in names for event in decode_input(name, chosen))
    return _identified(events)


def expand(paths: Iterable[str], options: Options) -> Iterator[str]:
    """The files that the given paths stand for, each once, in their order."""
    seen: set[str] = set()
    for path in paths:
        for name in _matches(path, options):
            if name not in seen:
                seen.add(name)
                yield name


def _matches(path: str, options: Options) -> list[str]:
    if path == STDIN:
        return [path]
    import glob

    if _status(path) is None and (found := sorted(glob.glob(path, recursive=True))):  # noqa: PTH207 - takes absolute patterns
        if "**" in path:  # stands for folders too, whose files are in it already
            return [name for name in found if Path(name).is_file()]
        return [name for one in found for name in _named(one, options)]
    return _named(path, options)


def _named(path: str, options: Options) -> list[str]:
    status = _status(path)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return [path]
    if options.recursive:
        return _inside(path, options)
    options.unreadable(Unreadable(path, "is a folder: give -r to read all files in it"))
    return []


def _status(path: str) -> os.stat_result | None:
    """None where it cannot be asked: opening it says why."""
    try:
        return os.stat(path)  # noqa: PTH116 - a Path of no name would be this folder
    except OSError:
        return None


def _inside(folder: str, options: Options) -> list[str]:
    """All files below a folder, sorted. A folder that may not be listed is told: its files are missing."""

    def told(problem: OSError) -> None:
        options.unreadable(Unreadable(str(problem.filename), reason(problem)))

    found = (Path(base, name) for base, _, names in os.walk(folder, onerror=told) for name in names)
    return sorted(str(path) for path in found if path.is_file())


def total_size(names: Iterable[str]) -> int:
    """Bytes of all files, as stored; 0 for those that cannot be asked."""
    found = filter(None, map(_status, names))
    return sum(status.st_size for status in found if stat.S_ISREG(status.st_mode))


def decode_input(name: str, options: Options) -> Iterator[FaultSeen]:
    """The events of one input. What cannot be read is told to `options.unreadable`."""
    try:
        logs = (
            open_stream(cast("BinaryIO", sys.stdin.buffer), "stdin", options.progress)
            if name == STDIN
            else open_path(name, options.progress)
        )
        near = 0.0
        for log in logs:
            ctx = Context(reference=log.mtime, node=options.node, offset=options.offset, near=near)
            try:
                yield from decode_log(log, ctx)
            except Unreadable as problem:  # the other logs of its archive are still done
                options.unreadable(problem)
            near = ctx.clock.dated_at or near
    except Unreadable as problem:
        options.unreadable(problem)


def decode_log(log: Log, ctx: Context) -> Iterator[FaultSeen]:
    """The events of one opened log."""
    if log.stream.peek(len(SIGN)) == SIGN:
        return decode_export(log.stream, log.name, ctx)
    if written := report_date(log.stream.peek(HEAD)):
        ctx.clock.reference = written
    return settled(decode_stream(log.stream, log.name, ctx=ctx, size=log.size), ctx)


def _identified(events: Iterator[FaultSeen]) -> Iterator[FaultSeen]:
    """Fill in the UUIDs that an earlier file told."""
    known: dict[tuple[str, str], str] = {}
    for event in events:
        if event.pci is None:
            yield event
            continue
        if event.gpu is not None:
            known[event.node, event.pci] = event.gpu
        elif uuid := known.get((event.node, event.pci)):
            yield msgspec.structs.replace(event, gpu=uuid)
            continue
        yield event
