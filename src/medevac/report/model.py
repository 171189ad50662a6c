"""The story of one job, as data: what `to_json` writes and both renderings show. docs/story.md has the shape.

Times are unix seconds, durations seconds. A GPU has its UUID where machines read, and a label ("node1 GPU 0") where
people do.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from medevac.core.events import RankPlace

VERSION = 1

Outcome: TypeAlias = Literal["undisturbed", "recovered", "unproven", "gave-up", "held", "watched", "stopped", "running"]
Kind: TypeAlias = Literal[
    "environment",
    "fault",
    "detection",
    "decision",
    "done",
    "refused",
    "held",
    "ended",
    "start",
    "first-step",
    "proof",
    "order",
    "outcome",
]
State: TypeAlias = Literal["clean", "suspect", "condemned"]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a story are."""


class Point(Told, frozen=True, kw_only=True):
    """The furthest step of an attempt at a time, with the loss where one was told."""

    at: float
    step: int
    loss: float | None = None


class Attempt(Told, frozen=True, kw_only=True):
    """One execution. `told`: the step it was told to load; `loaded`: what it said it did; `bad`: where NaN showed;
    `diagnosis`: what its output says, "" where that says nothing.
    """

    number: int
    started: float | None
    ended: float | None
    told: int | None
    loaded: int | None
    ranks: tuple[RankPlace, ...]
    nodes: tuple[str, ...]
    how: str
    why: str
    diagnosis: str
    reached: int | None
    proved_at: float | None
    bad: Point | None
    curve: tuple[Point, ...]


class FindingTold(Told, frozen=True, kw_only=True):
    """A rule that held: about which part, by which clauses."""

    rule: str
    part: str
    label: str
    severity: str
    response: str
    meaning: str
    repair: str
    at: float
    clauses: tuple[str, ...]


class IncidentTold(Told, frozen=True, kw_only=True):
    """Findings with one cause. `touched`: the job ran on one of its parts."""

    id: str
    start: float
    last: float
    severity: str
    root: str
    victims: tuple[str, ...]
    probable_cause: str
    why: str
    closed: bool
    touched: bool
    findings: tuple[FindingTold, ...]


class Moment(Told, frozen=True, kw_only=True):
    """A line of the timeline. `recovery` is the number of the recovery it belongs to (0: none), `after` the seconds
    since that one's fault.
    """

    at: float
    kind: Kind
    text: str
    decision: str = ""
    recovery: int = 0
    after: float | None = None


class Recovery(Told, frozen=True, kw_only=True):
    """From a fault to the proof of progress. A time is None where it did not come to that.

    `lost_steps`: from the checkpoint that was loaded to the furthest step before, done twice; in every try.
    """

    number: int
    fault: str
    decision: str
    incident: str
    from_attempt: int
    to_attempt: int
    reached: int
    resumed: int | None
    lost_steps: int
    fault_at: float
    detected_at: float
    stopped_at: float | None = None
    restarted_at: float | None = None
    first_step_at: float | None = None
    proof_at: float | None = None

    def spans(self) -> tuple[tuple[str, float], ...]:
        """The seconds from each of its marks to the next, by the name of the one it ends with."""
        marks = (
            ("detection", self.detected_at),
            ("stop", self.stopped_at),
            ("restart", self.restarted_at),
            ("first step", self.first_step_at),
            ("proof", self.proof_at),
        )
        spans, last = [], self.fault_at
        for name, at in marks:
            if at is not None:
                spans.append((name, round(max(at - last, 0.0), 3)))
                last = max(last, at)
        return tuple(spans)


class CheckpointTold(Told, frozen=True, kw_only=True):
    """A checkpoint, what is thought of it and why; `used` by these attempts. `replaced`: a later one of the same step
    took its place, and the verdict is the one it had until then.
    """

    step: int
    attempt: int
    sealed_at: float | None
    parent: int | None
    state: State
    why: str
    ranks: int
    used: tuple[int, ...] = ()
    replaced: bool = False


class HeldTold(Told, frozen=True, kw_only=True):
    """What a guard held back, from when; `done_at` when the same was done after all."""

    at: float
    guard: str
    what: str
    why: str
    decision: str
    done_at: float | None


class DeviceTold(Told, frozen=True, kw_only=True):
    """A GPU at the end: its state and why, and which rank it had in the first and the last attempt."""

    uuid: str
    index: int
    node: str
    rack: str
    state: str
    why: str
    first_rank: int | None
    last_rank: int | None


class InPlace(Told, frozen=True, kw_only=True):
    """A step that was bad, and what the job itself did about it, in its words: no restart was needed."""

    at: float
    attempt: int
    step: int
    how: str


class Summary(Told, frozen=True, kw_only=True):
    """The four things to know, a sentence each."""

    happened: str
    blame: str
    done: str
    cost: str


class Story(Told, frozen=True, kw_only=True):
    """Everything. `why`: what it ended or waits for; `lost_steps`: in all; `down_s`: from faults to proofs, in all."""

    version: int = VERSION
    job: str
    command: tuple[str, ...]
    policy: str
    outcome: Outcome
    code: int | None
    why: str
    headline: str
    summary: Summary
    start: float
    end: float
    lost_steps: int
    down_s: float
    attempts: tuple[Attempt, ...]
    recoveries: tuple[Recovery, ...]
    incidents: tuple[IncidentTold, ...]
    timeline: tuple[Moment, ...]
    checkpoints: tuple[CheckpointTold, ...]
    held: tuple[HeldTold, ...]
    devices: tuple[DeviceTold, ...]
    in_place: tuple[InPlace, ...] = ()
