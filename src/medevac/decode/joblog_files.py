"""A log file as blocks of bytes: plain, .gz, .xz or .zst, `-` for standard input."""

from __future__ import annotations

import gzip
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

BLOCK = 1 << 20


class UnreadableLog(OSError):
    """The log could not be read; the message names it and says why."""


def blocks(name: str) -> Iterator[bytes]:
    """The bytes of a log in blocks. Raises `UnreadableLog`, also in the middle where a file is cut."""
    try:
        with _open(name) as stream:
            while block := stream.read(BLOCK):
                yield block
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnreadableLog(f"{name}: {why}") from error


def _open(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    if name.endswith(".gz"):
        return cast("BinaryIO", gzip.open(name))
    if name.endswith(".xz"):
        return cast("BinaryIO", lzma.open(name))
    if name.endswith(".zst"):
        return _zstd(name)
    return Path(name).open("rb")


def _zstd(name: str) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise UnreadableLog(f"{name}: to read .zst install medevac[zstd]") from error
    return cast("BinaryIO", zstandard.open(name, "rb"))
