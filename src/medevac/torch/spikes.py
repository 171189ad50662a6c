"""A value far from the run's own recent ones: a warning, and where that is wanted the steps are done again."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from medevac.torch.checks import Finding

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


class SpikeWatch:
    """Loss and gradient norm of one training. A spike is of one rank; what follows is agreed a step later, by the words
    that all ranks have heard.
    """

    def __init__(self, *, replay: bool) -> None:
        self._kinds = Spikes("loss"), Spikes("gradient norm")
        self._replay = replay
        self._again: set[int] = set()

    def look(self, loss: float | None, norm: float | None) -> str:
        """What is unusual about a step's values, "" if nothing is."""
        seen = [
            spikes.look(value) for spikes, value in zip(self._kinds, (loss, norm), strict=True) if value is not None
        ]
        return "; ".join(filter(None, seen))

    def finding(self, done: int, ranks: tuple[int, ...]) -> Finding | None:
        """What follows when `ranks` saw a spike in the step before, and nothing else was found: `done` steps are done.

        The steps are done again once. What is there again comes from data or software; what is gone does not.
        """
        if not self._replay:
            return None
        who = f"rank {', '.join(map(str, ranks))}"
        if done in self._again:
            told = (
                f"there again when done again, at {who}: the data or the software" if ranks else "gone when done again"
            )
            self._again.discard(done)
            return Finding(why=f"the spike after {done} steps is {told}", want="warn")
        if not ranks:
            return None
        self._again.add(done)
        return Finding(why=f"a spike after {done} steps that nothing explains, at {who}", want="replay", since=done - 1)
