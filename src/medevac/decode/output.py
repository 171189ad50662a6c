"""The JSON shapes of `medevac decode`: one object a line, for events and for incidents. docs/decode.md explains them.

The JSON Schemas in docs/ are generated from these structs. `SCHEMA` goes up when a field changes its meaning or goes;
a new field does not raise it.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from medevac.catalog.schema import Audience, Severity
from medevac.core.events import Value
from medevac.decode.annotate import PolicyAction
from medevac.decode.incidents_story import Blamed, Fact, Role, Root

if TYPE_CHECKING:
    from medevac.core.events import FaultSeen
    from medevac.decode.annotate import Annotation
    from medevac.decode.incidents import Membership
    from medevac.decode.incidents_story import Incident

SCHEMA: Literal[1] = 1
CSV_COLUMNS = (
    "at",
    "node",
    "pci",
    "kind",
    "code",
    "severity",
    "meaning",
    "action",
    "policy_action",
    "pid",
    "process",
    "gpu_uuid",
    "incident",
    "role",
    "file",
    "line",
    "raw",
    "details",
)


class EventObject(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a log, as read."""

    schema: Literal[1] = SCHEMA
    kind: str
    """What it is: xid, sxid, fell_off, aer, mlx5, ... (the list stands in docs/decode.md)."""
    file: str | None
    line: int | None
    code: int | None
    pci: str | None
    """Address in the form 0000:3b:00.0."""
    pid: int | None
    process: str | None
    at: str | None
    """The source's own time, ISO 8601 in UTC; null where the log does not say."""
    node: str | None
    gpu_uuid: str | None
    details: dict[str, Value]
    """What else the line says."""
    severity: Severity
    meaning: str
    action: str | None
    """NVIDIA's bucket for it, "not published" where there is none; null for lines that have no buckets."""
    policy_action: PolicyAction | None
    """Our action where it differs, and the rule."""
    raw: str
    incident: str | None = None
    """Null for what is no fault: a link that comes up, who a GPU is."""
    role: Role = "alone"


class IncidentObject(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs together, as --incidents prints it."""

    schema: Literal[1] = SCHEMA
    incident: str
    first: str | None
    last: str | None
    nodes: tuple[str, ...]
    root: Root | None
    """Null where the log shows victims only."""
    blame: Blamed
    facts: tuple[Fact, ...]
    severity: Severity
    meaning: str
    action_now: str
    action_after: str
    kills_job: bool | None
    audience: Audience
    repeats: int
    """Earlier incidents with the same root on the same part."""


def event_object(fault: FaultSeen, reading: Annotation, membership: Membership | None = None) -> EventObject:
    """The event in its printed shape."""
    return EventObject(
        kind=fault.kind,
        file=fault.file or None,
        line=fault.line or None,
        code=fault.code,
        pci=fault.pci,
        pid=fault.pid,
        process=fault.process,
        at=iso(fault.at),
        node=fault.node or None,
        gpu_uuid=fault.gpu,
        details=fault.details,
        severity=reading.severity,
        meaning=reading.meaning,
        action=reading.action,
        policy_action=reading.policy_action,
        raw=fault.raw,
        incident=membership.incident if membership else None,
        role=membership.role if membership else "alone",
    )


def incident_object(incident: Incident) -> IncidentObject:
    """The incident in its printed shape."""
    return IncidentObject(
        incident=incident.incident,
        first=iso(incident.first),
        last=iso(incident.last),
        nodes=incident.nodes,
        root=incident.root,
        blame=incident.blame,
        facts=incident.facts,
        severity=incident.severity,
        meaning=incident.meaning,
        action_now=incident.action_now,
        action_after=incident.action_after,
        kills_job=incident.kills_job,
        audience=incident.audience,
        repeats=incident.repeats,
    )


def csv_row(event: EventObject) -> tuple[object, ...]:
    """The event's values in the order of CSV_COLUMNS."""
    policy = f"{event.policy_action.action} ({event.policy_action.rule})" if event.policy_action else None
    texts = {"policy_action": policy, "details": msgspec.json.encode(event.details).decode()}
    values = (texts[name] if name in texts else getattr(event, name) for name in CSV_COLUMNS)
    return tuple("" if value is None else value for value in values)


def iso(at: float | None) -> str | None:
    """Unix seconds as `2026-03-01T10:00:00.250000Z`; None for no time."""
    if not at:
        return None
    seconds, micros = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z" if micros else f"{_second(seconds)}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
