"""Where in a block of bytes a line may be a fault: a few anchor literals that cover all kinds, found in one pass.

Only lines that an anchor hits are parsed. Hyperscan does it without a copy; without that package `re` does, slower.
Each literal ends in letters that are rare in logs: that, more than their number, decides the speed (ADR 0010).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Protocol

Buffer = bytes | bytearray | memoryview

# Upper and lower case alike.
CASELESS = (b"nvrm", b"nvsw", b"pcie", b"i/o e")
# As they stand: a piece of the fault's words whose last four bytes are rare.
EXACT: tuple[bytes, ...] = (
    b"AER:",
    b"mlx5",
    b"infinib",
    b"efa 0",
    b"oom-k",  # oom-kill: and invoked oom-killer
    b"Kill",  # Killed process, Kill process
    b"Hardware E",
    b"EDAC",
    b"or, dev",  # I/O error, critical medium error, critical target error
    b"able pat",  # no available path, no usable path
    b"EXT4",
    b"XFS (",
    b"BTRFS",
    b"nvme n",
    b"Disk f",
    b"tempe",
    b"wer lim",  # power limit
    b"abricm",  # nv-fabricmanager
    b"nel pan",
    b"ft locku",
    b"libncc",
    b"peerm",
    b"nfs:",
    b"amdgpu",
    b"carrie",
    b"for mo",  # blocked for more than
    b"k is Do",  # NIC Link is Down
    b"k is Up",
)
# Needed only where the log has lines of that form.
CLOCKS: tuple[bytes, ...] = (b"system clock", b"state=initi", b"Linux version", b"BERT: E", b"EINJ", b"check inj")
MANAGER: tuple[bytes, ...] = (b"[tid",)
_UNDATED = re.compile(
    rb"^(?:<\d{1,3}>|\S{1,64}: )?\[ {0,8}\d{1,9}\.\d{3,6}\] |^\d{1,3},\d{1,12},\d{1,18},", re.MULTILINE
)
_JOURNAL = b'"MESSAGE"'


def anchors_for(head: bytes) -> tuple[bytes, ...]:
    """The literals to look for in a log that begins with `head` (some hundred kilobytes tell enough)."""
    words = EXACT
    if _UNDATED.search(head) or _JOURNAL in head:  # kernel seconds need the lines that say when second 0 was
        words += CLOCKS
    if MANAGER[0] in head:
        words += MANAGER
    return words


class Scanner(Protocol):
    """Finds anchors."""

    def scan(self, data: Buffer, size: int) -> list[int]:
        """Offsets in `data[:size]`, ascending, each inside an anchor (its last byte or before)."""


class HyperScanner:
    """All anchors at once by Hyperscan."""

    def __init__(self, exact: tuple[bytes, ...]) -> None:
        import hyperscan

        words = [*CASELESS, *exact]
        flags = [hyperscan.HS_FLAG_CASELESS if word in CASELESS else 0 for word in words]
        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=words, ids=list(range(len(words))), elements=len(words), flags=flags, literal=True
        )
        self._hits: list[int] = []
        self._on_match = _collector(self._hits)

    def scan(self, data: Buffer, size: int) -> list[int]:
        self._hits.clear()
        self._database.scan(memoryview(data)[:size], match_event_handler=self._on_match)
        return self._hits


def _collector(hits: list[int]) -> Callable[[int, int, int, int, Any], None]:
    append = hits.append

    def on_match(_id: int, _start: int, end: int, _flags: int, _context: Any) -> None:
        append(end - 1)

    return on_match


class PlainScanner:
    """One search of the standard library for each anchor."""

    def __init__(self, exact: tuple[bytes, ...]) -> None:
        self._words = tuple(form for word in CASELESS for form in _forms(word)) + exact

    def scan(self, data: Buffer, size: int) -> list[int]:
        block = bytes(data[:size])
        return sorted(at for word in self._words for at in _all(block, word))


def _forms(word: bytes) -> tuple[bytes, ...]:
    """The spellings of a caseless anchor that drivers use."""
    mixed = {b"nvsw": b"NVSw", b"pcie": b"PCIe", b"i/o e": b"I/O e"}
    return (word, word.upper(), *([mixed[word]] if word in mixed else []))


def _all(block: bytes, word: bytes) -> list[int]:
    found = []
    at = block.find(word)
    while at >= 0:
        found.append(at)
        at = block.find(word, at + len(word))
    return found


@functools.cache
def make_scanner(exact: tuple[bytes, ...] = (*EXACT, *CLOCKS, *MANAGER)) -> Scanner:
    """The fastest scanner that this machine has, for CASELESS and `exact`."""
    try:
        return HyperScanner(exact)
    except ImportError:
        return PlainScanner(exact)


def line_counter(size: int) -> Callable[[Buffer, int, int], int]:
    """How line ends in `data[start:stop]` are counted, for an input of about `size` bytes (0: not known).

    Python counts single bytes one by one; numpy, where it is there, in vectors, once its import pays.
    """
    if 0 < size < 200_000_000:
        return _count
    try:
        import numpy as np
    except ImportError:
        return _count

    def count(data: Buffer, start: int, stop: int) -> int:
        if stop - start < 4096:
            return _count(data, start, stop)
        found = np.frombuffer(data, np.uint8, stop - start, start) == ord("\n")
        return int(np.count_nonzero(found))

    return count


def _count(data: Buffer, start: int, stop: int) -> int:
    return (
        data.count(b"\n", start, stop) if isinstance(data, bytes | bytearray) else bytes(data[start:stop]).count(b"\n")
    )
