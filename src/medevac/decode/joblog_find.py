"""Which lines of a block can match which signatures at all: the fast part of the scan.

Every signature names texts of which its line must hold one. With hyperscan they are all found in one pass. Without it
they are looked for one by one by `bytes.find`, several that share a piece together by that piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from medevac.catalog.signatures import Signature

GATES = ("rror", "ailed", "ailure", "xception", "illed", "WARN", "imed", "imeout", "emory", "ption", "lost", "device")
"""Pieces that many texts of signatures hold. Fewer pieces, fewer passes; too short ones let too many lines through."""
NEAR = 8192
"""A carriage return further away than this from a match does not end its line."""


class Hit(NamedTuple):
    """A line of a block, from `start` to `end`, and the signatures that may match it."""

    start: int
    end: int
    among: tuple[Signature, ...]


class Finder(Protocol):
    """Finds the lines worth reading."""

    def hits(self, block: bytes) -> Iterator[Hit]:
        """The lines that hold the text of a signature, in order, each once."""
        ...


class PlainFinder:
    """Looks for the pieces one by one."""

    def __init__(self, known: Sequence[Signature]) -> None:
        self._by_piece: dict[bytes, list[Signature]] = {}
        for one in known:
            for piece in {next((gate for gate in GATES if gate in text), text) for text in one.texts}:
                self._by_piece.setdefault(piece.encode(), []).append(one)

    def hits(self, block: bytes) -> Iterator[Hit]:
        """See `Finder`."""
        found: dict[tuple[int, int], list[Signature]] = {}
        for piece, signatures in self._by_piece.items():
            at = block.find(piece)
            while at >= 0:
                start, end = line_around(block, at)
                text = block[start:end].decode("utf-8", "replace")
                if among := [one for one in signatures if any(words in text for words in one.texts)]:
                    found.setdefault((start, end), []).extend(among)
                at = block.find(piece, end)
        return (
            Hit(start, end, tuple(dict.fromkeys(among))) for (start, end), among in sorted(found.items(), key=_where)
        )


class HyperscanFinder:
    """Finds all texts in one pass."""

    def __init__(self, known: Sequence[Signature]) -> None:
        import hyperscan

        self._known = tuple(known)
        texts = [(number, text) for number, one in enumerate(known) for text in one.texts]
        self._base = hyperscan.Database()
        self._base.compile(
            expressions=[re.escape(text).encode() for _, text in texts],
            ids=[number for number, _ in texts],
            flags=[0] * len(texts),
        )

    def hits(self, block: bytes) -> Iterator[Hit]:
        """See `Finder`."""
        found: dict[tuple[int, int], dict[int, None]] = {}
        line = (0, -1)

        def seen(number: int, _start: int, end: int, _flags: int, _context: Any) -> None:
            nonlocal line
            if not line[0] < end <= line[1]:
                line = line_around(block, end - 1)
            found.setdefault(line, {})[number] = None

        self._base.scan(block, match_event_handler=seen)
        for (start, end), numbers in sorted(found.items(), key=_where):
            yield Hit(start, end, tuple(self._known[number] for number in numbers))


def _where(item: tuple[tuple[int, int], object]) -> int:
    return item[0][0]


def line_around(block: bytes, at: int) -> tuple[int, int]:
    """Start and end of the line (newline or carriage return) that holds the byte at `at`."""
    start = block.rfind(b"\n", 0, at) + 1
    end = block.find(b"\n", at)
    end = len(block) if end < 0 else end
    start = max(start, block.rfind(b"\r", max(start, at - NEAR), at) + 1)
    turn = block.find(b"\r", at, min(end, at + NEAR))
    return start, turn if turn >= 0 else end


@lru_cache(maxsize=4)
def finder(known: tuple[Signature, ...]) -> Finder:
    """The fastest finder that this installation has."""
    try:
        return HyperscanFinder(known)
    except ImportError:
        return PlainFinder(known)
