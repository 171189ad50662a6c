"""What a parser makes of one message, and the small values that all parsers share."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from medevac.core.events import Value

Details = dict[str, Value]

PCI_PATTERN = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"


class Reading(NamedTuple):
    """One message read: the same names as in `FaultSeen`."""

    kind: str
    code: int | None = None
    pci: str | None = None
    pid: int | None = None
    process: str | None = None
    details: Details = {}


@functools.lru_cache(maxsize=1024)
def pci_address(text: str) -> str:
    """Any printed form of a PCI address (3B:00, 0000:3b:00, 00000000:3B:00.0) as 0000:3b:00.0."""
    text = text.lower()
    if "." not in text:
        text += ".0"
    domain, _, rest = text.rpartition(":")
    domain, _, bus = domain.rpartition(":")
    domain = (domain or "0").lstrip("0").rjust(4, "0")
    return f"{domain}:{bus}:{rest}"


def number(text: str | None) -> int | None:
    """A decimal pid; None for `<unknown>`, quoted or not, and for nothing."""
    return int(text) if text and text.isdecimal() else None


def yes(value: object) -> str:
    """A flag as the details write it."""
    return "yes" if value else "no"


def put(details: Details, pattern: re.Pattern[str], text: str) -> bool:
    """The named groups of the first match of `pattern` in `text`, decimal numbers as int, into `details`."""
    match = pattern.search(text)
    if match is None:
        return False
    for name, value in match.groupdict().items():
        if value is not None:
            details[name] = value
    return True


def put_numbers(details: Details, pattern: re.Pattern[str], text: str) -> bool:
    """As `put`, where each group is a decimal number."""
    match = pattern.search(text)
    if match is None:
        return False
    for name, value in match.groupdict().items():
        if value is not None:
            details[name] = int(value)
    return True
