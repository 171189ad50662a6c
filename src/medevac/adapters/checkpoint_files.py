"""The files of one checkpoint against its seal: sizes first, which is cheap, then every byte."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import xxhash

from medevac.core.seal import SealedFile

CHUNK = 4 << 20
"""Bytes read at a time: large enough that the hash, not the calls, takes the time; small beside a training's memory."""


_PASSING = {errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that say nothing about the file. Others do, a disk's EIO too: what cannot be read cannot be resumed from."""


class _Digest(Protocol):
    def update(self, data: memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


def compare(folder: Path, files: Mapping[str, SealedFile]) -> str:
    """The first difference in words, "" for none. Files that the seal does not name are the job's own affair.

    Raises OSError when the folder itself, or its file system now, cannot be read.
    """
    root = folder.resolve(strict=True)
    if not files:
        return "the seal names no files"
    return next(filter(None, (_wrong_size(root, name, file.size) for name, file in files.items())), "") or next(
        filter(None, (_wrong_bytes(root, name, file) for name, file in files.items())), ""
    )


def _wrong_size(root: Path, name: str, size: int) -> str:
    try:
        place = (root / name).resolve(strict=True)
        found = place.stat()
    except RuntimeError:
        return f"{name}: is a circle of links"
    except OSError as error:
        return _unreadable(name, error)
    if not place.is_relative_to(root):
        return f"{name}: is a link that leaves the step folder"
    if not stat.S_ISREG(found.st_mode):
        return f"{name}: is not a file"
    return "" if found.st_size == size else f"{name}: {found.st_size} bytes, sealed with {size}"


def _wrong_bytes(root: Path, name: str, file: SealedFile) -> str:
    kind, _, sealed = file.hash.partition(":")
    try:
        found = _hash(root / name, _digest(kind, len(sealed)))
    except OSError as error:
        return _unreadable(name, error)
    return "" if found == sealed else f"{name}: content differs from its seal ({kind} {found}, sealed {sealed})"


def _unreadable(name: str, error: OSError) -> str:
    if error.errno in _PASSING:
        raise error
    return f"{name}: {error.strerror}"


def _digest(kind: str, digits: int) -> _Digest:
    if kind == "sha256":
        return hashlib.sha256()
    return xxhash.xxh3_64() if digits == 16 else xxhash.xxh3_128()


def _hash(path: Path, digest: _Digest) -> str:
    buffer = memoryview(bytearray(CHUNK))
    # Should it have become a pipe since it was looked at, opening must not wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as fh:  # noqa: PTH123 (a descriptor, not a path)
        while count := fh.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
