"""The vocabulary of steps on the world. An action's id comes from its cause: doing it twice is harmless.

The id stays the same while a guard holds the action back, and is another one when the same is ordered anew later: a
scheduler may then take an id that it has seen for one that is done.

A scheduler, a checkpoint keeper and a notifier each perform their own kinds; `docs/architecture.md` has the table.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from medevac.core.events import RankPlace


class Action(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What all actions have: a stable id, the incident or job event that caused it, and the reason in words."""

    id: str
    cause: str = ""
    reason: str = ""


class Isolate(Action, frozen=True, kw_only=True, tag=True):
    """Take a GPU (or a whole node, `gpu` empty) out. soft: no new work; hard: no work at all."""

    node: str
    mode: Literal["soft", "hard"]
    gpu: str = ""


class Restrict(Action, frozen=True, kw_only=True, tag=True):
    """Leave a GPU (or a whole node, `gpu` empty) in service, and let work prefer others."""

    node: str
    gpu: str = ""


class Repair(Action, frozen=True, kw_only=True, tag=True):
    """Mend what is isolated, once nothing runs there. `readmit`: done when it is in service again; else it stays out
    until it was looked at.
    """

    node: str
    how: Literal["reset", "reboot"]
    gpu: str = ""
    readmit: bool = True


class GiveBack(Action, frozen=True, kw_only=True, tag=True):
    """Undo an Isolate or Restrict of ours."""

    node: str
    gpu: str = ""


class RequestCheckpoint(Action, frozen=True, kw_only=True, tag=True):
    """Ask the running attempt to save a checkpoint and leave with exit code 83."""

    job: str
    attempt: int
    deadline_s: float = 60.0


class StopAttempt(Action, frozen=True, kw_only=True, tag=True):
    """End the attempt's processes: signal, then after `grace_s` SIGKILL; nothing of it is left when done.

    `examine`: it hangs, so what shows who holds it up is read first. Where the scheduler keeps the job from starting
    meanwhile, `hold` says whom that waits for, and `resume_from` what a start by anyone else would be told to load.
    """

    job: str
    attempt: int
    grace_s: float = 0.0
    examine: bool = False
    hold: Literal["recovery", "person"] = "recovery"
    resume_from: int | None = None


class ExamineAttempt(Action, frozen=True, kw_only=True, tag=True):
    """Look at an attempt that makes no progress since `since`: processes, flight recorders, and with `stacks` what its
    ranks are at. Reads only.
    """

    job: str
    attempt: int
    since: float = 0.0
    silent_s: float = 8.0
    stacks: bool = False


class JudgeCheckpoint(Action, frozen=True, kw_only=True, tag=True):
    """Write a verdict on a checkpoint into the job's lineage file."""

    job: str
    step: int
    state: Literal["clean", "suspect", "condemned"]


class VerifyCheckpoint(Action, frozen=True, kw_only=True, tag=True):
    """Read all files of a checkpoint and compare them with its seal."""

    job: str
    step: int


class PointClean(Action, frozen=True, kw_only=True, tag=True):
    """Make `latest_clean` point to this step, by rename (None: take it away). Written before a hold or a start."""

    job: str
    step: int | None


class StartAttempt(Action, frozen=True, kw_only=True, tag=True):
    """Start the job's next attempt at these places, told to load `resume_from` (None: from nothing)."""

    job: str
    attempt: int
    ranks: tuple[RankPlace, ...] = ()
    resume_from: int | None = None


class HoldJob(Action, frozen=True, kw_only=True, tag=True):
    """Keep the job from starting: `purpose` recovery (ours to release) or person (waits for one). `array`: `job` names
    an array, of which every task is held that waits; what runs goes on.
    """

    job: str
    purpose: Literal["recovery", "person"]
    array: bool = False


class ReleaseJob(Action, frozen=True, kw_only=True, tag=True):
    """Take our hold off."""

    job: str


class FinishJob(Action, frozen=True, kw_only=True, tag=True):
    """Nothing more will be done for the job; `code` is what `medevac run` ends with."""

    job: str
    code: int


class Page(Action, frozen=True, kw_only=True, tag=True):
    """Tell a person."""

    level: Literal["info", "warning", "critical"]
    text: str


AnyAction: TypeAlias = (
    Isolate
    | Restrict
    | Repair
    | GiveBack
    | RequestCheckpoint
    | StopAttempt
    | ExamineAttempt
    | JudgeCheckpoint
    | VerifyCheckpoint
    | PointClean
    | StartAttempt
    | HoldJob
    | ReleaseJob
    | FinishJob
    | Page
)
