"""What the core says: findings, incidents, decisions. All of it is written to the audit log as it stands here."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from medevac.core.actions import AnyAction
from medevac.core.diagnose_case import Diagnosis

Severity: TypeAlias = Literal["info", "warning", "critical"]
Domain: TypeAlias = Literal["gpu", "nvlink", "node", "rack", "power", "fabric", "job"]


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape of the core's values."""


class Part(Struct, frozen=True, kw_only=True, order=True):
    """The thing that is blamed: a GPU of a node, a node (no gpu), a rack or feed (`domain` says), a job."""

    domain: Domain
    name: str
    node: str = ""
    pci: str = ""


class Clause(Struct, frozen=True, kw_only=True):
    """One predicate of a rule that held, with the numbers that made it hold."""

    says: str
    value: float | str | None = None
    limit: float | str | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """What one rule made of the evidence about one part. `doubt_from`: computations of the part after this time may
    be wrong (None: they stand).
    """

    rule: str
    part: Part
    severity: Severity
    meaning: str
    response: Literal["none", "watch", "restrict", "soft", "hard", "page"] = "none"
    repair: str = ""
    mends: Literal["", "reset", "reboot"] = ""
    readmit: bool = True
    at: float = 0.0
    doubt_from: float | None = None
    clauses: tuple[Clause, ...] = ()
    facts: tuple[str, ...] = ()
    family: str = ""


class Incident(Struct, frozen=True, kw_only=True):
    """Findings with one cause. `root` is what is blamed; `probable_cause` what shared thing stands behind it."""

    id: str
    start: float
    last: float
    root: Part
    findings: tuple[Finding, ...]
    victims: tuple[Part, ...] = ()
    probable_cause: Part | None = None
    why: str = ""
    severity: Severity = "info"
    closed: bool = False

    def isolates(self) -> bool:
        """A finding of it takes something out of service, or restricts it."""
        return any(finding.response in {"restrict", "soft", "hard"} for finding in self.findings)


class Diagnosed(Struct, frozen=True, kw_only=True):
    """Why an attempt failed, as far as its output, its GPUs and its history tell."""

    job: str
    attempt: int
    verdict: Diagnosis


class Trigger(Struct, frozen=True, kw_only=True):
    """Something that may move a state machine: `machine` job or device, who, on what, why, which GPUs are blamed."""

    machine: Literal["job", "device"]
    who: str
    on: str
    why: str = ""
    cause: str = ""
    blames: tuple[str, ...] = ()


class Held(Struct, frozen=True, kw_only=True):
    """An action that a guard took out of a decision: which guard, why, when it may be tried again (None: not by
    itself), and the trigger that wants it.
    """

    action: AnyAction
    guard: str
    why: str
    trigger: Trigger
    until: float | None = None


class Moved(Struct, frozen=True, kw_only=True):
    """A state machine's step. `until`: when the new state comes due by itself."""

    trigger: Trigger
    source: str
    target: str
    until: float | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """The answer to one event. Empty ones are not kept. `cause` is the seq of the event, `at` its time."""

    id: str
    cause: int
    at: float
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    diagnoses: tuple[Diagnosed, ...] = ()
    moved: tuple[Moved, ...] = ()
    actions: tuple[AnyAction, ...] = ()
    held: tuple[Held, ...] = ()
    policy: str = ""

    def empty(self) -> bool:
        """Nothing was found, moved, wanted or held back."""
        return not (self.findings or self.incidents or self.diagnoses or self.moved or self.actions or self.held)
