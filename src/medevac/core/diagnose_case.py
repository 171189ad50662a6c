"""What a diagnosis is made from, and what it is: the case and the verdict, as values."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Cause: TypeAlias = Literal[
    "hardware",
    "network",
    "storage",
    "system-software",
    "user-code",
    "out-of-memory",
    "numerical",
    "preemption",
    "unknown",
]
Symptom: TypeAlias = Literal["crash", "hang", "slow", "none"]
Role: TypeAlias = Literal["root", "confirmation", "symptom", "cascade"]
Named: TypeAlias = Literal["rank", "peer", "node", "gpu", "none"]
Advice: TypeAlias = Literal["restart", "restart-excluding", "stop", "look"]


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all values here have in common."""


class Clue(_Value, frozen=True, kw_only=True):
    """One line that a signature matched, or one fact of another source in the same words.

    `rank`, `node`, `gpu` and `pci` are the part it is about; `peer` is only named by a witness. `count` is how often
    the same part said the same, `last` the line where it did so last; `at` unix seconds where the source gives a time.
    """

    signature: str
    role: Role
    symptom: Symptom = "crash"
    names: Named = "rank"
    cause: Cause | None = None
    weight: int = 0
    file: str = ""
    line: int = 0
    text: str = ""
    rank: int | None = None
    node: str = ""
    gpu: int | None = None
    pci: str = ""
    peer: str = ""
    fields: dict[str, str] = {}
    count: int = 1
    last: int = 0
    at: float | None = None


class ProgressSeen(_Value, frozen=True, kw_only=True):
    """The last progress of a log: step, of how many, at which line.

    `since` is the line of the third report from the end: what lies before it was survived. 0 where there were fewer.
    """

    file: str = ""
    line: int = 0
    since: int = 0
    step: int = 0
    total: int | None = None


class PastEnd(_Value, frozen=True, kw_only=True):
    """How an earlier attempt of the job ended."""

    cause: Cause
    node: str = ""
    step: int | None = None
    signature: str = ""


class Case(_Value, frozen=True, kw_only=True):
    """All evidence on one end of a job.

    `ranks` are the ranks seen in the logs; `nodes` those of the scheduler's record, empty where not known;
    `started` and `ended` unix seconds; `last_line` by file is how long each log is; `step` the furthest one that the
    attempt reached, `history` how earlier ones ended.
    """

    clues: tuple[Clue, ...] = ()
    progress: tuple[ProgressSeen, ...] = ()
    ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    started: float | None = None
    ended: float | None = None
    last_line: dict[str, int] = {}
    step: int | None = None
    history: tuple[PastEnd, ...] = ()


class Suspect(_Value, frozen=True, kw_only=True):
    """Who is likely at fault, and why; a part that is not known is None or empty."""

    why: str
    rank: int | None = None
    node: str = ""
    gpu: str = ""


class Diagnosis(_Value, frozen=True, kw_only=True):
    """Why the job died, hung or slowed. `confidence` 0..1 is in `cause`; with `abstained` it is what the best was."""

    cause: Cause
    symptom: Symptom
    confidence: float
    advice: Advice
    suspects: tuple[Suspect, ...] = ()
    root: tuple[Clue, ...] = ()
    cascade: tuple[Clue, ...] = ()
    settle: str = ""
    abstained: bool = False
