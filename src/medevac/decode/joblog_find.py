"""Which lines of a block can match a signature at all: the fast part of the scan.

Every signature names a text that its line must hold. With hyperscan all these texts are found in one pass. Without it
a few short pieces, of which every text holds one, are looked for by `bytes.find`, which is as fast as memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from medevac.catalog.signatures import Signature

GATES = (
    "rror",
    "ailed",
    "ailure",
    "xception",
    "illed",
    "WARN",
    "nan",
    "NaN",
    "imed",
    "imeout",
)


class Finder(Protocol):
    """Finds the lines worth reading, and the signatures worth trying on one."""

    def spans(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Start and end of each line that holds the text of a signature, in order, each once."""
        ...

    def candidates(self, text: str) -> Iterator[Signature]:
        """The signatures whose text the line holds."""
        ...


class PlainFinder:
    """Looks for the texts one by one; short pieces common to many of them first."""

    def __init__(self, known: Sequence[Signature]) -> None:
        self._known = tuple(known)
        texts = {one.contains for one in known}
        used = {next((gate for gate in GATES if gate in text), text) for text in texts}
        self._pieces = tuple(sorted((piece.encode() for piece in used), key=len))

    def spans(self, block: bytes) -> Iterator[tuple[int, int]]:
        """See `Finder`."""
        found: dict[int, int] = {}
        for piece in self._pieces:
            at = block.find(piece)
            while at >= 0:
                start, end = line_around(block, at)
                found[start] = end
                at = block.find(piece, end)
        return iter(sorted(found.items()))

    def candidates(self, text: str) -> Iterator[Signature]:
        """See `Finder`."""
        return (one for one in self._known if one.contains in text)


class HyperscanFinder(PlainFinder):
    """Finds all texts in one pass."""

    def __init__(self, known: Sequence[Signature]) -> None:
        super().__init__(known)
        import hyperscan

        self._texts = sorted({one.contains for one in known})
        self._base = hyperscan.Database()
        self._base.compile(
            expressions=[re.escape(text).encode() for text in self._texts],
            ids=list(range(len(self._texts))),
            flags=hyperscan.HS_FLAG_SOM_LEFTMOST,
        )

    def spans(self, block: bytes) -> Iterator[tuple[int, int]]:
        """See `Finder`."""
        found: dict[int, int] = {}
        last = -1

        def seen(_id: int, start: int, _end: int, _flags: int, _context: Any) -> None:
            nonlocal last
            if start >= last:
                begin, last = line_around(block, start)
                found[begin] = last

        self._base.scan(block, match_event_handler=seen)
        return iter(sorted(found.items()))


def line_around(block: bytes, at: int) -> tuple[int, int]:
    """Start and end of the line (newline or carriage return) that holds the byte at `at`."""
    start = max(block.rfind(b"\n", 0, at), block.rfind(b"\r", max(0, at - 8192), at)) + 1
    ends = [end for end in (block.find(b"\n", at), block.find(b"\r", at, at + 8192)) if end >= 0]
    return start, min(ends, default=len(block))


@lru_cache(maxsize=4)
def finder(known: tuple[Signature, ...]) -> Finder:
    """The fastest finder that this installation has."""
    try:
        return HyperscanFinder(known)
    except ImportError:
        return PlainFinder(known)
