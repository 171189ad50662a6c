"""A job's checkpoint folder on a file system: `medevac.ports.checkpoints.Checkpoints`.

Nothing in the folder is believed: a seal may be torn, of another format, or name files outside of its step; then the
step's lineage is unknown, and says why. All reading and writing is done in threads: a file system may be slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
import xxhash

from medevac.adapters.checkpoint_files import compare
from medevac.core.actions import JudgeCheckpoint, PointClean, VerifyCheckpoint
from medevac.core.events import AnyEvent, CheckpointFound, CheckpointJudged, CheckpointSealed, CheckpointVerified
from medevac.core.seal import LATEST_CLEAN, LINEAGE, SEAL, Seal, Verdict, decode_seal, step_folder, step_of
from medevac.ports.errors import Refused, Unavailable

log = structlog.get_logger(__name__)
_decode_verdict = msgspec.json.Decoder(Verdict).decode


class _Line(NamedTuple):
    """A verdict and what names its line: where it begins, and a hash of it."""

    id: str
    verdict: Verdict


class _Lineage(NamedTuple):
    """What was read of a lineage file so far: up to the end of its last whole line."""

    inode: int = 0
    end: int = 0
    lines: tuple[_Line, ...] = ()


class _Step(NamedTuple):
    """What was read of a step folder, good while its seal and the folder itself look the same."""

    look: tuple[int, ...]
    event: AnyEvent


class FolderCheckpoints:
    """`writer` names this store in the verdicts it writes: those of any other are events to us.

    Keeps what it has read, so that a scan opens only what changed since the last one.
    """

    def __init__(self, *, writer: str, now: Callable[[], float] = time.time) -> None:
        self._writer = writer
        self._now = now
        self._steps: dict[tuple[str, str], dict[str, _Step]] = {}
        self._lineages: dict[str, _Lineage] = {}

    async def scan(self, job: str, folder: str) -> tuple[AnyEvent, ...]:
        return await asyncio.to_thread(self._scan, job, Path(folder))

    async def verify(self, action: VerifyCheckpoint, folder: str) -> CheckpointVerified:
        return await asyncio.to_thread(self._verify, action, Path(folder))

    async def judge(self, action: JudgeCheckpoint, folder: str) -> None:
        await asyncio.to_thread(self._judge, action, Path(folder))

    async def point(self, action: PointClean, folder: str) -> None:
        if action.step is None:
            await asyncio.to_thread(_unpoint, Path(folder))
        else:
            await asyncio.to_thread(_point, action.step, Path(folder))

    async def pointed(self, folder: str) -> int | None:
        return await asyncio.to_thread(_pointed, Path(folder))

    async def judged(self, folder: str) -> dict[int, str]:
        lines = await asyncio.to_thread(self._read_lineage, Path(folder))
        return {line.verdict.step: line.verdict.state for line in lines}

    def _scan(self, job: str, folder: Path) -> tuple[AnyEvent, ...]:
        known = self._steps.get((job, str(folder)), {})
        found = {}
        for step, name in _steps(folder):
            with contextlib.suppress(FileNotFoundError):
                found[name] = _look_at(job, folder / name, step, known.get(name))
        self._steps[job, str(folder)] = found
        verdicts = (line for line in self._read_lineage(folder) if line.verdict.by != self._writer)
        return (*(step.event for step in found.values()), *(_judged_event(job, line) for line in verdicts))

    def _verify(self, action: VerifyCheckpoint, folder: Path) -> CheckpointVerified:
        place = _existing(folder, action.step)
        try:
            seal = _read_seal(place, action.step)
        except (OSError, ValueError) as error:
            problem = _why(error)
        else:
            with _reaching(place):
                problem = compare(place, seal.files)
        return CheckpointVerified(
            at=self._now(),
            id=f"{action.id}/verified",
            source="checkpoints",
            job=action.job,
            step=action.step,
            ok=not problem,
            problem=problem,
        )

    def _judge(self, action: JudgeCheckpoint, folder: Path) -> None:
        _existing(folder, action.step)
        with _reaching(folder / LINEAGE), _appending(folder / LINEAGE) as fd:
            last = {line.verdict.step: line.verdict.state for line in self._read_lineage(folder)}
            if last.get(action.step) != action.state:
                _append(fd, msgspec.json.encode(self._verdict(action)) + b"\n")

    def _verdict(self, action: JudgeCheckpoint) -> Verdict:
        return Verdict(
            step=action.step,
            state=action.state,
            why=action.reason,
            event=action.cause or action.id,
            at=self._now(),
            by=self._writer,
        )

    def _read_lineage(self, folder: Path) -> tuple[_Line, ...]:
        """All whole lines so far; only what was added since the last time is read."""
        path = folder / LINEAGE
        known = self._lineages.get(str(folder), _Lineage())
        with _reaching(path):
            try:
                with path.open("rb") as fh:
                    at = os.fstat(fh.fileno())
                    if at.st_ino != known.inode or at.st_size < known.end:
                        known = _Lineage(inode=at.st_ino)
                    fh.seek(known.end)
                    added, end = _verdicts(path, known.end, fh.read())
            except FileNotFoundError:
                self._lineages.pop(str(folder), None)
                return ()
        self._lineages[str(folder)] = known._replace(end=end, lines=(*known.lines, *added))
        return self._lineages[str(folder)].lines


def _steps(folder: Path) -> list[tuple[int, str]]:
    """The step folders, oldest step first."""
    with _reaching(folder):
        try:
            names = [place.name for place in folder.iterdir()]
        except FileNotFoundError:
            return []
    return sorted((step, name) for name in names if (step := step_of(name)) is not None)


def _look_at(job: str, place: Path, step: int, known: _Step | None) -> _Step:
    """What stands in a step folder. Raises FileNotFoundError when it went away meanwhile."""
    look = _look(place)
    if known and known.look == look:
        return known
    try:
        raw = (place / SEAL).read_bytes()
        return _Step(look, _sealed_event(job, place.name, _parsed(raw, step), raw))
    except (OSError, ValueError) as error:
        made = place.stat()
        event = CheckpointFound(
            at=made.st_mtime,
            id=f"{job}/{place.name}/found:{made.st_ino}:{xxhash.xxh3_64_hexdigest(_why(error).encode())}",
            source="checkpoints",
            job=job,
            step=step,
            why=f"{place.name}/{_why(error)}",
        )
        # A file system's error may pass without any change that shows: do not keep it.
        passing = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        return _Step(() if passing else look, event)


def _look(place: Path) -> tuple[int, ...]:
    folder = place.stat()
    try:
        seal = (place / SEAL).stat()
    except OSError:
        return (folder.st_ino,)
    return (folder.st_ino, seal.st_ino, seal.st_size, seal.st_mtime_ns)


def _sealed_event(job: str, name: str, seal: Seal, raw: bytes) -> CheckpointSealed:
    """Named by the seal's content: the same wherever the folder is copied, another when the step is saved again."""
    return CheckpointSealed(
        at=seal.at,
        id=f"{job}/{name}/seal:{xxhash.xxh3_64_hexdigest(raw)}",
        source="checkpoints",
        job=job,
        # Attempts are counted from 1; 0 is none of this job's own: another job left the checkpoint to it.
        attempt=seal.attempt if seal.job == job else 0,
        step=seal.step,
        parent=seal.parent,
        ranks=seal.ranks,
    )


def _judged_event(job: str, line: _Line) -> CheckpointJudged:
    verdict = line.verdict
    return CheckpointJudged(
        at=verdict.at,
        id=f"{job}/lineage:{line.id}",
        source="checkpoints",
        job=job,
        step=verdict.step,
        state=verdict.state,
        why=verdict.why,
    )


def _read_seal(place: Path, step: int) -> Seal:
    return _parsed((place / SEAL).read_bytes(), step)


def _parsed(raw: bytes, step: int) -> Seal:
    seal = decode_seal(raw)
    if seal.step != step:
        raise ValueError(f"seals step {seal.step}")
    return seal


def _why(error: OSError | ValueError) -> str:
    return f"{SEAL}: {error.strerror if isinstance(error, OSError) else error}"


def _verdicts(path: Path, start: int, raw: bytes) -> tuple[list[_Line], int]:
    """The verdicts in the whole lines of `raw`, and where the last of them ends. A torn last line waits for its end."""
    found, at = [], start
    for line in raw[: raw.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            found.append(_Line(f"{at}:{xxhash.xxh3_64_hexdigest(line)}", _decode_verdict(line)))
        except ValueError as error:
            if line.strip():
                log.warning("a line of the lineage file is no verdict", file=str(path), offset=at, problem=str(error))
        at += len(line)
    return found, at


@contextmanager
def _appending(path: Path) -> Iterator[int]:
    """The lineage file, made where missing, nobody else appending meanwhile."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            # Some file systems have no locks; O_APPEND alone still keeps lines apart.
            if error.errno not in {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}:
                raise
        yield fd
    finally:
        os.close(fd)


def _append(fd: int, line: bytes) -> None:
    """Add a line whole and durable, or not at all; a torn one before it is closed off."""
    end = os.fstat(fd).st_size
    if end and os.pread(fd, 1, end - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:
            line = line[os.write(fd, line) :]
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, end)
        raise


def _point(step: int, folder: Path) -> None:
    _existing(folder, step)
    if _pointed(folder) == step:
        return
    link, fresh = folder / LATEST_CLEAN, folder / f".{LATEST_CLEAN}.{os.getpid()}"
    with _reaching(link):
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(step_folder(step))
        try:
            fresh.replace(link)
        except IsADirectoryError as error:
            fresh.unlink()
            raise Refused(f"{link}: is a folder, not a link of ours; move it away") from error
        _sync_folder(folder)


def _unpoint(folder: Path) -> None:
    with _reaching(folder / LATEST_CLEAN):
        if (folder / LATEST_CLEAN).is_symlink():
            (folder / LATEST_CLEAN).unlink(missing_ok=True)
            _sync_folder(folder)


def _pointed(folder: Path) -> int | None:
    with _reaching(folder / LATEST_CLEAN):
        try:
            return step_of(str((folder / LATEST_CLEAN).readlink()))
        except FileNotFoundError:
            return None
        except OSError:
            if (folder / LATEST_CLEAN).exists():
                return None
            raise


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _existing(folder: Path, step: int) -> Path:
    """The step's folder. Raises `Refused` where the folder is there and the step is not."""
    place = folder / step_folder(step)
    with _reaching(place):
        try:
            os.scandir(place).close()
        except (FileNotFoundError, NotADirectoryError) as error:
            os.scandir(folder).close()
            raise Refused(f"{place}: there is no such checkpoint") from error
    return place


@contextmanager
def _reaching(path: Path) -> Iterator[None]:
    """A file system that says no is one that cannot be reached now."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{error.filename or path}: {error.strerror}") from error
