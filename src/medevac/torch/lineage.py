"""Which checkpoints of a folder may be resumed from. Needs no torch.

A checkpoint is clean when its seal can be read, no newer verdict of `medevac-lineage.jsonl` doubts it, and none doubts
one that it continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from medevac.core.seal import LINEAGE, SEAL, CheckpointState, Seal, SealedFile, Verdict, decode_seal, step_of

WRITER = "medevac.torch"


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints stay: the newest `count` clean ones (0: all), with what is doubtful among them, and the first
    clean one of each stretch of `spacing_s` seconds (0: none); of all of these none older than `age_s` (0: any age).
    """

    count: int = 3
    age_s: float = 0.0
    spacing_s: float = 0.0


_CHUNK = 4 << 20


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed checkpoint and what is thought of it."""

    step: int
    path: Path
    seal: Seal
    state: CheckpointState = "clean"
    why: str = ""


def survey(folder: Path) -> list[Known]:
    """All sealed checkpoints of the folder, oldest step first. Raises OSError."""
    verdicts = read_verdicts(folder)
    found: dict[int, Known] = {}
    for step, path, seal in sorted(_sealed(folder), key=lambda one: one[0]):
        verdict = verdicts.get(step)
        parent = found.get(seal.parent) if seal.parent is not None else None
        state: CheckpointState = "clean"
        why = ""
        if verdict and verdict.at >= seal.at:
            state, why = verdict.state, verdict.why
        elif parent and parent.state != "clean":
            state, why = "suspect", f"it continues step {parent.step}"
        found[step] = Known(step=step, path=path, seal=seal, state=state, why=why)
    return list(found.values())


def newest_clean(folder: str | os.PathLike[str], before_step: int | None = None) -> Path | None:
    """The step folder to resume from, None where none is clean. Its files are not read: see `verify`."""
    clean = [
        known
        for known in survey(Path(folder))
        if known.state == "clean" and (before_step is None or known.step < before_step)
    ]
    return clean[-1].path if clean else None


def read_verdicts(folder: Path) -> dict[int, Verdict]:
    """The last verdict on each step; lines that are none are passed over."""
    found = {}
    try:
        lines = (folder / LINEAGE).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    for line in lines:
        with contextlib.suppress(ValueError):
            verdict = msgspec.json.decode(line, type=Verdict)
            found[verdict.step] = verdict
    return found


def judge(folder: Path, steps: Iterable[int], state: CheckpointState, why: str) -> None:
    """Append a verdict on each step, durable on return. Raises OSError."""
    lines = [msgspec.json.encode(Verdict(step=step, state=state, why=why, at=time.time(), by=WRITER)) for step in steps]
    if not lines:
        return
    fd = os.open(folder / LINEAGE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks; O_APPEND alone keeps lines apart
            fcntl.flock(fd, fcntl.LOCK_EX)
        end = os.fstat(fd).st_size
        torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
        os.write(fd, (b"\n" if torn else b"") + b"".join(line + b"\n" for line in lines))
        os.fsync(fd)
    finally:
        os.close(fd)


def verify(path: Path, seal: Seal, *, part: int = 0, parts: int = 1) -> str:
    """The first difference between the files and the seal in words, "" for none; every `parts`-th file from `part`.

    Raises OSError for a file that is there and cannot be read: that says nothing of what it holds.
    """
    mine = sorted(seal.files.items())[part::parts]
    if not seal.files:
        return "the seal names no files"
    return next(filter(None, (_differs(path, name, file) for name, file in mine)), "")


def _differs(path: Path, name: str, file: SealedFile) -> str:
    kind, _, sealed = file.hash.partition(":")
    try:
        size, found = hash_file(path / name, kind, len(sealed))
    except FileNotFoundError:
        return f"{name}: is not there"
    if size != file.size:
        return f"{name}: {size} bytes, sealed with {file.size}"
    return "" if found == sealed else f"{name}: content differs from its seal ({kind} {found}, sealed {sealed})"


def hash_file(path: Path, kind: str = "xxh3", digits: int = 32) -> tuple[int, str]:
    """Bytes and hash of a file. Raises OSError."""
    if kind == "sha256":
        import hashlib

        digest: xxhash.xxh3_64 | xxhash.xxh3_128 | hashlib._Hash = hashlib.sha256()
    else:
        digest = xxhash.xxh3_64() if digits == 16 else xxhash.xxh3_128()
    size, buffer = 0, memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return size, digest.hexdigest()


def prune(folder: Path, keep: Keep) -> list[int]:
    """Remove the checkpoints that `keep` does not keep; returns the removed steps.

    The newest clean one stays, whatever `keep` says, and so does a doubtful one that is newer than all clean ones.
    """
    known, removed = survey(folder), []
    going = _too_many(known, keep, time.time())
    try:
        keep_doubts(folder, known, {one.step for one in going})
    except OSError:
        return []
    for one in going:
        gone = one.path.with_name(f".replaced-{one.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            one.path.rename(gone)  # first out of sight: nobody finds half of it
            removed.append(one.step)
        shutil.rmtree(gone, ignore_errors=True)
    return removed


def keep_doubts(folder: Path, known: list[Known], going: set[int]) -> None:
    """Write down what would be forgotten with the ones that go, or that others of the same step replace: doubt that a
    staying one only inherits. Raises OSError.
    """
    heirs = [one for one in known if one.step not in going and one.state != "clean" and one.seal.parent in going]
    for one in heirs:
        judge(folder, [one.step], one.state, one.why)


def _too_many(known: list[Known], keep: Keep, now: float) -> list[Known]:
    clean = [one for one in known if one.state == "clean"]
    if not clean:
        return []
    newest, oldest = clean[-1].step, clean[-keep.count :][0].step if keep.count else 0
    young = {one.step for one in known if not keep.age_s or now - one.seal.at <= keep.age_s}
    apart: dict[float, int] = {}
    for one in clean:
        apart.setdefault(one.seal.at // keep.spacing_s if keep.spacing_s else math.inf, one.step)
    marks = set(apart.values()) if keep.spacing_s else set()
    stays = {one.step for one in known if one.step >= newest or (one.step in young and one.step >= oldest)}
    stays |= marks & young
    return [one for one in known if one.step not in stays]


def _sealed(folder: Path) -> Iterable[tuple[int, Path, Seal]]:
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        step = step_of(path.name)
        if step is None:
            continue
        with contextlib.suppress(OSError, ValueError):
            seal = decode_seal((path / SEAL).read_bytes())
            if seal.step == step:
                yield step, path, seal
