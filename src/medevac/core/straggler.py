"""Who is slow: a rank against its peers in the same step, and a job against its own past.

Each is judged over several steps, so that one slow step, an eval or a save (which are no steps) makes no straggler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec


class SlowRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Policy data. A rank is slow in a step when its own time is over `factor` times the median of its peers and over
    `spread` median absolute deviations; it is a straggler when that held in `share` of the last `window` steps.

    A job is slow when its step times drift: a one-sided CUSUM of (seconds - median) / deviation, less `drift`, passes
    `decision`. The deviation is 1.4826 x MAD, at least `least` of the median, so that a steady job is not touchy.
    """

    factor: float = 1.15
    spread: float = 4.0
    window: int = 20
    share: float = 0.8
    least_steps: int = 5
    baseline: int = 50
    drift: float = 1.5
    decision: float = 12.0
    least: float = 0.03
    slower: float = 1.15
    """A job is called slow only where its steps take this many times as long as before."""
    warm_up: int = 5
    """Step times at the start of an attempt that say nothing: compilation, first batches, caches."""
    calm: int = 10
    """An episode ends when at most a quarter of so many last steps were slow."""


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A slow rank: `ratio` to its peers' median over the steps looked at, in how many of how many steps it was slow."""

    rank: int
    ratio: float
    slow_steps: int
    steps: int


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A job that became slow: seconds a step before and now (medians), and from which step of the series on."""

    before_s: float
    now_s: float
    since: int


def stragglers(steps: Sequence[Mapping[int, float]], rule: SlowRule | None = None) -> tuple[Straggler, ...]:
    """The slow ranks, slowest first. `steps`: for each step, oldest first, each rank's own compute seconds (before the
    all-reduce: after it all ranks take as long as the slowest).
    """
    rule = rule or SlowRule()
    recent = [step for step in steps[-rule.window :] if len(step) > 2]
    if len(recent) < rule.least_steps:
        return ()
    slow: dict[int, list[float]] = {}
    for step in recent:
        for rank, ratio in slow_ranks(step, rule).items():
            slow.setdefault(rank, []).append(ratio)
    found = [
        Straggler(rank=rank, ratio=round(median(ratios), 3), slow_steps=len(ratios), steps=len(recent))
        for rank, ratios in slow.items()
        if len(ratios) >= rule.share * len(recent)
    ]
    return tuple(sorted(found, key=lambda one: -one.ratio))


class Drift(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step times against a job's own past, folded one by one: a CUSUM over a baseline of the first ones.

    `recent`: the step times since the sum last was 0, `risen` how many they are (the oldest are let go).
    """

    baseline: tuple[float, ...] = ()
    middle: float = 0.0
    deviation: float = 0.0
    total: float = 0.0
    recent: tuple[float, ...] = ()
    risen: int = 0

    def after(self, seconds: float, rule: SlowRule) -> Drift:
        """With one more step."""
        if len(self.baseline) < rule.baseline:
            return self._learned((*self.baseline, seconds), rule)
        rise = min((seconds - self.middle) / self.deviation, rule.decision / 2)  # one outlier alone cannot decide
        total = min(max(0.0, self.total + rise - rule.drift), 2 * rule.decision)
        if total == 0.0:
            return msgspec.structs.replace(self, total=0.0, recent=(), risen=0) if self.total else self
        recent = (*self.recent, seconds)[-rule.window :]
        return msgspec.structs.replace(self, total=total, recent=recent, risen=self.risen + 1)

    def quiet(self) -> Drift:
        """The same baseline, and nothing seen since."""
        return msgspec.structs.replace(self, total=0.0, recent=(), risen=0)

    def slowdown(self, rule: SlowRule) -> Slowdown | None:
        """Whether the rise is for good; None while it is not."""
        if self.total <= rule.decision or len(self.recent) < rule.least_steps:
            return None
        now = median(self.recent)
        return Slowdown(before_s=self.middle, now_s=now, since=0) if now >= rule.slower * self.middle else None

    def _learned(self, baseline: tuple[float, ...], rule: SlowRule) -> Drift:
        if len(baseline) < rule.baseline:
            return msgspec.structs.replace(self, baseline=baseline)
        middle = median(baseline)
        spread = 1.4826 * median(abs(value - middle) for value in baseline)
        return Drift(baseline=baseline, middle=middle, deviation=max(spread, rule.least * middle, 1e-9))


def slowdown(seconds: Sequence[float], rule: SlowRule | None = None) -> Slowdown | None:
    """Whether step times rose for good against the job's first `baseline` steps given here; None while they did not."""
    rule = rule or SlowRule()
    drift = Drift()
    for value in seconds:
        drift = drift.after(value, rule)
    found = drift.slowdown(rule)
    return msgspec.structs.replace(found, since=len(seconds) - drift.risen) if found else None


def slow_ranks(step: Mapping[int, float], rule: SlowRule) -> dict[int, float]:
    """Ranks far above the others in one step, with their ratio to the median."""
    middle = median(step.values())
    spread = 1.4826 * median(abs(value - middle) for value in step.values())
    limit = max(rule.factor * middle, middle + rule.spread * spread)
    return {rank: value / middle for rank, value in step.items() if middle > 0 and value > limit}
