"""Slurm's lists of hosts: `node[001-003,7],login,rack[1-2]n[0-3]` (slurm.conf(5), "NodeName")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

_PART = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?:%\d+)?")
MOST_HOSTS = 1_000_000


def expand(text: str) -> tuple[str, ...]:
    """The names in their order. Empty for `(null)`, `None assigned`, `n/a` and nothing; raises `ValueError`."""
    text = text.strip()
    if text in {"", "(null)", "n/a", "N/A", "None", "None assigned", "None_assigned"}:
        return ()
    return tuple(name for piece in _pieces(text) for name in _expand_one(piece))


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a range list such as `0-3,7` or an array's `28-59%100`. Raises `ValueError`."""
    return tuple(int(number) for number in _range(text)) if text else ()


def join(names: Iterable[str]) -> str:
    """A list that every Slurm reads, without ranges."""
    return ",".join(sorted(set(names)))


def compress(names: Iterable[str]) -> str:
    """The same with ranges, for lists that are long: `node[0-3,7],login`."""
    numbered: dict[tuple[str, int], list[int]] = {}
    found: list[str] = []
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d{1,9})", name)
        if match:
            numbered.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            found.append(name)
    for (prefix, width), values in numbered.items():
        spans = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in _spans(sorted(values))]
        found.append(f"{prefix}{spans[0]}" if len(values) == 1 else f"{prefix}[{','.join(spans)}]")
    return ",".join(found)


def _spans(values: list[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for value in values:
        if spans and spans[-1][1] == value - 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    return spans


def _pieces(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
        if depth not in {0, 1}:
            raise ValueError(f"host list {text!r}: brackets do not match")
    if depth:
        raise ValueError(f"host list {text!r}: brackets do not match")
    return [piece for piece in (*pieces, text[start:]) if piece]


def _expand_one(piece: str) -> Iterable[str]:
    if "[" not in piece:
        return (piece,)
    words = _PART.split(piece)
    choices = [_range(word) if position % 2 else [word] for position, word in enumerate(words)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_HOSTS:
        raise ValueError(f"host list {piece!r}: more than {MOST_HOSTS} hosts")
    return ("".join(names) for names in product(*choices))


def _range(text: str) -> list[str]:
    found: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise ValueError(f"host list range {text!r} cannot be read")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise ValueError(f"host list range {text!r} runs backwards or is too long")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
