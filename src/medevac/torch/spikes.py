"""A value far from the run's own recent ones: a Warning, nothing more."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

WINDOW = 64
LEAST = 16
"""So many values are needed before one can stand out."""
SPREADS = 12.0
FACTOR = 3.0


class Spikes:
    """Values of one kind (loss, gradient norm). `look` costs a sort of 64 numbers, and that only every 16th step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._limit = math.inf
        self._seen = 0

    def look(self, value: float) -> str:
        """What is unusual about the value, "" if nothing is. One that spikes does not move the limit at once."""
        if not math.isfinite(value):
            return ""
        told = f"{self.name} {value:.4g} is over {self._limit:.4g}" if value > self._limit else ""
        self._values.append(value)
        self._seen += 1
        if self._seen >= LEAST and self._seen % LEAST == 0:
            middle = median(self._values)
            spread = median(abs(one - middle) for one in self._values)
            self._limit = max(middle + SPREADS * spread, FACTOR * abs(middle))
        return told
