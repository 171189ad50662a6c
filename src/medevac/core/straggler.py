"""Who is slow: a rank against its peers in the same step, and a job against its own past.

Each is judged over several steps, so that one slow step, an eval or a save (which are no steps) makes no straggler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec


class SlowRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
        for rank, ratio in _slow_ranks(step, rule).items():
            slow.setdefault(rank, []).append(ratio)
    found = [
        Straggler(rank=rank, ratio=round(median(ratios), 3), slow_steps=len(ratios), steps=len(recent))
        for rank, ratios in slow.items()
        if len(ratios) >= rule.share * len(recent)
    ]
    return tuple(sorted(found, key=lambda one: -one.ratio))


def slowdown(seconds: Sequence[float], rule: SlowRule | None = None) -> Slowdown | None:
    """Whether step times rose for good against the job's first `baseline` steps given here; None while they did not."""
    rule = rule or SlowRule()
    usual, now = seconds[: rule.baseline], seconds[rule.baseline :]
    if len(usual) < rule.baseline or not now:
        return None
    middle = median(usual)
    deviation = max(1.4826 * median(abs(value - middle) for value in usual), rule.least * middle)
    total, since = 0.0, 0
    for at, value in enumerate(now):
        rise = min((value - middle) / deviation, rule.decision / 2)  # one outlier alone cannot decide
        total = max(0.0, total + rise - rule.drift)
        if total == 0.0:
            since = at + 1
    if total <= rule.decision:
        return None
    return Slowdown(before_s=middle, now_s=median(now[since:]), since=rule.baseline + since)


def _slow_ranks(step: Mapping[int, float], rule: SlowRule) -> dict[int, float]:
    """Ranks far above the others in one step, with their ratio to the median."""
    middle = median(step.values())
    spread = 1.4826 * median(abs(value - middle) for value in step.values())
    limit = max(rule.factor * middle, middle + rule.spread * spread)
    return {rank: value / middle for rank, value in step.items() if middle > 0 and value > limit}
