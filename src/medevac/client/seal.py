"""Checkpoints that can be trusted later: a step folder appears whole, with a seal of who made it and what it holds.

    with sealed(folder, Seal(job=job, attempt=attempt, step=40, parent=20, ranks=ranks)) as staging:
        numpy.save(staging / "parameters.npy", parameters)

A job that is killed at any moment leaves either no `step_00000040` or a complete one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from medevac.client.lineage import carry_doubts
from medevac.core.seal import SEAL, Seal, SealedFile, encode_seal, step_folder, step_of

STAGING = ".saving-"
REPLACED = ".replaced-"
_CHUNK = 1 << 20


class _Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...

    def hexdigest(self) -> str: ...


def _hash() -> tuple[str, Callable[[], _Digest]]:
    try:
        import xxhash
    except ImportError:
        return "sha256", hashlib.sha256
    return "xxh3", xxhash.xxh3_128


HASH, _new_digest = _hash()


@contextmanager
def sealed(folder: Path, draft: Seal) -> Iterator[Path]:
    """A folder to write the draft's step into; on leaving it is sealed and renamed into place.

    A folder of the same step, left by an attempt that was given up, is replaced; what continued it stays as
    suspect as it was. Raises OSError when the disk does (full, read-only, gone); the step's folder then is as it was
    before.
    """
    began = time.time()
    staging = folder / f"{STAGING}{step_folder(draft.step)}.{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        carry_doubts(folder, began, seal(staging, draft))
        _publish(staging, folder / step_folder(draft.step))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def seal(folder: Path, draft: Seal) -> Seal:
    """Hash all files of `folder` and write the draft with them and the time as its seal, by rename, durable on
    return. Raises OSError.
    """
    staged = folder / f".{SEAL}"
    staged.unlink(missing_ok=True)
    files = {path.relative_to(folder).as_posix(): _sealed_file(path) for path in _files(folder)}
    made = msgspec.structs.replace(draft, at=time.time(), files=files)
    staged.write_bytes(encode_seal(made))
    _sync(staged)
    staged.replace(folder / SEAL)
    _sync(folder)
    return made


def newest(folder: Path) -> Path | None:
    """The step folder with the highest step, whatever it holds: what a restart without Medevac takes."""
    steps = [(step, path) for path in _listed(folder) if (step := step_of(path.name)) is not None]
    return max(steps)[1] if steps else None


def sweep(folder: Path) -> None:
    """Remove what a killed save left behind. For the start of an attempt, while nobody else saves into `folder`."""
    for path in _listed(folder):
        if path.name.startswith((STAGING, REPLACED)):
            shutil.rmtree(path, ignore_errors=True)


def _publish(staging: Path, target: Path) -> None:
    old = target.with_name(f"{REPLACED}{target.name}.{os.getpid()}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)


def _sealed_file(path: Path) -> SealedFile:
    digest = _new_digest()
    size = 0
    with path.open("rb") as data:
        while chunk := data.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
        os.fsync(data.fileno())
    return SealedFile(size=size, hash=f"{HASH}:{digest.hexdigest()}")


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
