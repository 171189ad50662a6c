"""Where everything stands in the drawing of a story: steps and loss over time, marks, checkpoints, attempts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from medevac.report.model import Attempt, State, Story
from medevac.report.words import clock, span

WIDTH, LEFT, RIGHT = 1080, 56, 16
STEP_HEIGHT, LOSS_HEIGHT, GAP = 230, 80, 30
LABEL_ROW, LANE = 17, 22
CHARACTER = 6.6


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A vertical line with its label, in a row where it hides no other."""

    x: float
    kind: str
    label: str
    row: int
    left: bool
    title: str


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint."""

    x: float
    y: float
    state: State
    title: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt: its steps, its loss, its bar in the lane below."""

    number: int
    steps: str
    loss: str
    x: float
    width: float
    label: str
    bad: tuple[float, float] | None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A place on an axis."""

    at: float
    label: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """The drawing, in pixels of its own box."""

    width: int
    height: float
    left: int
    right: float
    step_top: float
    step_bottom: float
    loss_top: float
    loss_bottom: float
    lane_top: float
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]
    marks: tuple[Mark, ...]
    bands: tuple[tuple[float, float], ...]
    times: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    losses: tuple[Tick, ...]


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1.0)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)


def draw(story: Story) -> Chart | None:
    """The drawing; None for a job of which no step was told."""
    points = [point for attempt in story.attempts for point in attempt.curve]
    if not points:
        return None
    begin = min([story.start, *(a.started for a in story.attempts if a.started)])
    x = Scale(low=begin, high=max(story.end, points[-1].at), start=LEFT, end=WIDTH - RIGHT)
    marks = tuple(_marks(story, x))
    top = LABEL_ROW * (max((mark.row for mark in marks), default=-1) + 1) + 12.0
    highest = max([*(point.step for point in points), *(c.step for c in story.checkpoints), 1])
    y = Scale(low=0, high=highest, start=top + STEP_HEIGHT, end=top)
    losses = [point.loss for point in points if point.loss is not None]
    loss_top = top + STEP_HEIGHT + GAP
    loss_bottom = loss_top + (LOSS_HEIGHT if losses else 0)
    low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)
    z = Scale(low=low, high=high, start=loss_bottom, end=loss_top)
    lane_top = loss_bottom + (GAP if losses else 0)
    return Chart(
        width=WIDTH,
        height=lane_top + LANE + 26,
        left=LEFT,
        right=WIDTH - RIGHT,
        step_top=top,
        step_bottom=top + STEP_HEIGHT,
        loss_top=loss_top,
        loss_bottom=loss_bottom,
        lane_top=lane_top,
        lines=tuple(_line(attempt, story.end, x, y, z) for attempt in story.attempts),
        dots=tuple(_dots(story, x, y)),
        marks=marks,
        bands=tuple((x(r.fault_at), x(r.proof_at or story.end) - x(r.fault_at)) for r in story.recoveries),
        times=tuple(Tick(at=x(begin + t), label=span(t) if t else clock(begin)) for t in _nice(0, x.high - begin, 9)),
        steps=tuple(Tick(at=y(step), label=f"{step:g}") for step in _nice(0, highest, 5)),
        losses=tuple(Tick(at=z(value), label=f"{value:.3g}") for value in (low, high)) if losses else (),
    )


def _line(attempt: Attempt, end: float, x: Scale, y: Scale, z: Scale) -> Line:
    begin = attempt.started or (attempt.curve[0].at if attempt.curve else end)
    over = attempt.ended or end
    label = f"attempt {attempt.number}"
    origin = attempt.loaded if attempt.loaded is not None else attempt.told
    width = max(x(over) - x(begin), 2.0)
    full = f"{label} from step {origin}" if origin is not None else label
    bad = attempt.bad
    height = y(min(bad.step, int(y.high))) if bad else 0.0
    return Line(
        number=attempt.number,
        steps=_path((x(p.at), y(p.step)) for p in attempt.curve),
        loss=_path((x(p.at), z(p.loss)) for p in attempt.curve if p.loss is not None),
        x=x(begin),
        width=round(width, 1),
        label=next((text for text in (full, label, str(attempt.number)) if len(text) * CHARACTER + 8 < width), ""),
        bad=(x(bad.at), height) if bad else None,
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def _dots(story: Story, x: Scale, y: Scale) -> Iterable[Dot]:
    for one in story.checkpoints:
        if one.sealed_at is not None and one.sealed_at >= x.low:
            why = f": {one.why}" if one.why else ""
            yield Dot(x=x(one.sealed_at), y=y(one.step), state=one.state, title=f"step {one.step}, {one.state}{why}")


def _marks(story: Story, x: Scale) -> Iterable[Mark]:
    """Left to right, each label in the lowest row that is free where it stands."""
    ends: list[float] = []
    for at, kind, label in sorted(_moments(story)):
        here, width = x(at), len(label) * CHARACTER + 10
        left = here + width > WIDTH - RIGHT
        first = here - width if left else here
        row = next((n for n, end in enumerate(ends) if first > end), len(ends))
        ends[row : row + 1] = [first + width]
        yield Mark(x=here, kind=kind, label=label, row=row, left=left, title=f"{label} at {clock(at)}")


def _moments(story: Story) -> Iterable[tuple[float, str, str]]:
    seen: set[str] = set()
    for moment in story.timeline:
        if moment.kind == "environment" and moment.text not in seen:
            seen.add(moment.text)
            yield moment.at, "environment", moment.text.split(":")[0]
    for recovery in story.recoveries[:6]:
        yield recovery.fault_at, "fault", "fault"
        for name, at in (
            ("detection", recovery.detected_at),
            ("stop", recovery.stopped_at),
            ("restart", recovery.restarted_at),
            ("proof of progress", recovery.proof_at),
        ):
            if at is not None:
                yield at, name.split()[0], name


def _nice(low: float, high: float, most: int) -> Sequence[float]:
    """Round numbers from `low` to `high`, at most about `most` of them."""
    raw = max((high - low) / most, 1e-9)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [low + n * step for n in range(int((high - low) / step) + 1)]
