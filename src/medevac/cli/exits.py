"""Exit codes of `medevac` (docs/exit-codes.md). `medevac run` otherwise passes on the job's own code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """What the command ended with."""

    DONE = 0
    """Done, or nothing found."""
    FOUND = 1
    """Something was found, or a check failed."""
    USAGE = 2
    """Wrong use or wrong configuration."""
    UNREADABLE = 3
    """An input could not be read or reached; the rest was still done."""
    GAVE_UP = 4
    """No progress over several attempts."""
    WAITS = 5
    """A person must decide."""
    DRAINED = 83
    """From inside a job: stopped after a checkpoint, as asked."""
    HARDWARE_SUSPECT = 84
    """From inside a job: the hardware under it is suspect."""
    ROLL_BACK = 85
    """From inside a job: wants to go back to a clean checkpoint."""
    SUSPECT_CHECKPOINT = 86
    """From inside a job: had resumed from a suspect checkpoint."""


def worst(codes: Iterable[Exit]) -> Exit:
    """Of several results of reading: an unreadable input outranks a finding."""
    return max(codes, default=Exit.DONE)
