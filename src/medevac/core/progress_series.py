"""What a run of progress reports shows by itself: a loss that jumped, steps that became slow for good."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

WINDOW = 50
"""Reports before and after that count; older ones say little about the end."""


def loss_jumped(losses: Sequence[float], *, factor: float = 1.8, least: float = 1.0) -> int | None:
    """Index of the first of the last `WINDOW` losses that is `factor` times the median of those before and `least`
    more; None where none is, or where losses are not all positive (a ratio then says nothing).
    """
    tail = losses[-WINDOW:]
    offset = len(losses) - len(tail)
    for at in range(1, len(tail)):
        before = tail[:at]
        if min(before) <= 0:
            return None
        usual = median(before)
        if tail[at] > factor * usual and tail[at] - usual > least:
            return offset + at
    return None
