"""Can the progress of this log be followed, and would a hang be noticed? A survey of a whole log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from medevac.core.progress import HangRule, Pace
from medevac.decode.progress_lines import Progress, ProgressReader

PRIORITY = (
    "custom",
    "megatron",
    "nemo",
    "torchtitan",
    "deepspeed",
    "deepspeed-step",
    "llama-factory",
    "composer",
    "lightning",
)
"""A log that has one of these is that framework's; bars and dicts of libraries beside it are not counted."""


class Survey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What check-log says of a log. Steps are of the one format that counts; times in seconds.

    `jumps_back` counts each step below the one before; `writers` how many append the same steps (1 is usual);
    `restarts` the jumps back that are none of several writers. `every_s` is the time between two progress lines,
    `limit_s` after how long without one the job counts as hung once ten were seen; None where no time is known.
    """

    format: str | None = None
    lines: int = 0
    progress_lines: int = 0
    example: str = ""
    example_line: int = 0
    first: float | None = None
    last: float | None = None
    highest: float | None = None
    distinct: int = 0
    total: int | None = None
    jumps_back: int = 0
    writers: int = 1
    restarts: int = 0
    step_s: float | None = None
    every_s: float | None = None
    limit_s: float | None = None
    last_loss: float | None = None
    others: dict[str, int] = {}


def survey(lines: Iterable[tuple[int, str]], regex: str | None = None, rule: HangRule | None = None) -> Survey:
    """Survey numbered lines. Raises ValueError for a wrong regex."""
    reader = ProgressReader(regex)
    found: list[tuple[int, str, Progress]] = []
    count = 0
    for number, text in lines:
        count = number
        if (seen := reader.read(text)) is not None:
            found.append((number, text, seen))
    if not found:
        return Survey(lines=count)
    name = _format_that_counts(Counter(seen.format for _, _, seen in found))
    mine = _main_bar([row for row in found if row[2].format == name])
    others = Counter(seen.format for _, _, seen in found if seen.format != name)
    return _summary(mine, count, dict(others), rule or HangRule())


def intervals(found: Sequence[Progress]) -> list[float]:
    """Seconds between each two reports that follow each other upwards, from the times on the lines where there are
    such, else from bars' elapsed time, else from the seconds that a step took.
    """
    gaps = []
    for before, now in itertools.pairwise(found):
        steps = now.step - before.step
        if steps <= 0:
            continue
        if before.at is not None and now.at is not None and now.at > before.at:
            gaps.append(now.at - before.at)
        elif before.elapsed is not None and now.elapsed is not None and now.elapsed > before.elapsed:
            gaps.append(now.elapsed - before.elapsed)
        elif now.seconds is not None:
            gaps.append(now.seconds * steps)
    return gaps


def _format_that_counts(counts: Counter[str]) -> str:
    named = next((name for name in PRIORITY if counts[name] >= 2), None)
    return named or counts.most_common(1)[0][0]


def _main_bar(found: list[tuple[int, str, Progress]]) -> list[tuple[int, str, Progress]]:
    """Of several bars the longest: downloads and data preparation have bars of their own."""
    if found[0][2].format != "tqdm":
        return found
    longest = max(seen.total or 0 for _, _, seen in found)
    return [row for row in found if row[2].total == longest]


def _summary(found: list[tuple[int, str, Progress]], lines: int, others: dict[str, int], rule: HangRule) -> Survey:
    seen = [progress for _, _, progress in found]
    steps = [one.step for one in seen]
    jumps = sum(now < before for before, now in itertools.pairwise(steps))
    repeats = len(steps) / len(set(steps))
    writers = round(repeats) if repeats > 1.4 and jumps > len(steps) // 20 else 1
    gaps = intervals(_climb(seen))
    losses = [one.loss for one in seen if one.loss is not None]
    return Survey(
        format=seen[0].format,
        lines=lines,
        progress_lines=len(seen),
        example=found[0][1].strip()[:200],
        example_line=found[0][0],
        first=steps[0],
        last=steps[-1],
        highest=max(steps),
        distinct=len(set(steps)),
        total=seen[-1].total,
        jumps_back=jumps,
        writers=writers,
        restarts=0 if writers > 1 else jumps,
        step_s=_step_seconds(seen, gaps),
        every_s=median(gaps) if gaps else None,
        limit_s=_limit(gaps, rule) if gaps else None,
        last_loss=losses[-1] if losses else None,
        others=others,
    )


def _climb(seen: Sequence[Progress]) -> list[Progress]:
    """Only the reports that are further than all before, or the first after a jump to where a log began: one writer."""
    climb: list[Progress] = []
    for one in seen:
        if not climb or one.step > climb[-1].step or one.step <= seen[0].step:
            climb.append(one)
    return climb


def _step_seconds(seen: Sequence[Progress], gaps: Sequence[float]) -> float | None:
    """Median seconds of one step: what the lines say, else the time between them over the steps between them."""
    said = [one.seconds for one in seen if one.seconds is not None]
    if said:
        return median(said)
    climb = _climb(seen)
    climbs = [now.step - before.step for before, now in itertools.pairwise(climb) if now.step > before.step]
    return median(gaps) / median(climbs) if gaps and climbs else None


def _limit(gaps: Sequence[float], rule: HangRule) -> float:
    """The limit in force at the end of the log."""
    pace, at = Pace(rule=rule).after("step", 0.0), 0.0
    for gap in gaps[-rule.window :]:
        at += gap
        pace = pace.after("step", at)
    return pace.limit("step")
