"""Which checkpoints of a folder may be resumed from, and which stay. Needs no torch.

Which are doubted is `medevac.client.lineage`'s: also for jobs without torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import msgspec
import xxhash

from medevac.client.lineage import Known, carry_doubts, judge, keep_doubts, survey
from medevac.core.seal import SEAL, Seal, SealedFile, step_of

__all__ = [
    "Keep",
    "Known",
    "carry_doubts",
    "hash_file",
    "judge",
    "newest_clean",
    "newest_of_any",
    "prune",
    "survey",
    "unsealed",
    "verify",
]


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints stay: the newest `count` clean ones (0: all), with what is doubtful among them, and the first
    clean one of each stretch of `spacing_s` seconds (0: none); of all of these none older than `age_s` (0: any age).
    """

    count: int = 3
    age_s: float = 0.0
    spacing_s: float = 0.0


_CHUNK = 4 << 20


def newest_clean(folder: str | os.PathLike[str], before_step: int | None = None) -> Path | None:
    """The step folder to resume from, None where none is clean. Its files are not read: see `verify`."""
    clean = [
        known
        for known in survey(Path(folder))
        if known.state == "clean" and (before_step is None or known.step < before_step)
    ]
    return clean[-1].path if clean else None


def newest_of_any(folder: Path) -> Path | None:
    """The newest step folder, sealed or not, that is not known to be condemned: where lineage does not count."""
    condemned = {known.step for known in survey(folder) if known.state == "condemned"}
    steps = {step: path for path in folder.glob("step_*") if (step := step_of(path.name)) is not None}
    kept = steps.keys() - condemned
    return steps[max(kept)] if kept else None


def unsealed(path: Path) -> bool:
    """Whether a step folder has no seal at all. Raises OSError where that cannot be known now."""
    try:
        (path / SEAL).stat()
    except FileNotFoundError:
        return True
    return False


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


def _too_many(known: list[Known], keep: Keep, now: float) -> list[Known]:
    clean = [one for one in known if one.state == "clean"]
    if not clean:
        return []
    newest, oldest = clean[-1].step, clean[-keep.count :][0].step if keep.count else 0
    young = {one.step for one in known if not keep.age_s or now - one.seal.at <= keep.age_s}
    marks: dict[float, int] = {}
    for one in clean if keep.spacing_s else ():
        marks.setdefault(one.seal.at // keep.spacing_s, one.step)
    stays = {one.step for one in known if one.step >= newest or (one.step in young and one.step >= oldest)}
    stays |= young & set(marks.values())
    return [one for one in known if one.step not in stays]
