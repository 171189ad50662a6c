"""Short makers of events for these tests."""

from __future__ import annotations

from medevac.core.events import FaultSeen, Value
from medevac.decode.incidents import Incident, Incidents

T0 = 1_772_000_000.0
GPU = "0000:3b:00.0"
PEER = "0000:5e:00.0"


def xid(  # noqa: PLR0913
    code: int,
    at: float = 0.0,
    *,
    node: str = "node1",
    pci: str | None = GPU,
    pid: int | None = None,
    process: str | None = None,
    file: str = "kern.log",
    **details: Value,
) -> FaultSeen:
    """An Xid `at` seconds after T0."""
    return fault("xid", at, code=code, node=node, pci=pci, pid=pid, process=process, file=file, **details)


def fault(  # noqa: PLR0913
    kind: str,
    at: float = 0.0,
    *,
    code: int | None = None,
    node: str = "node1",
    pci: str | None = None,
    pid: int | None = None,
    process: str | None = None,
    file: str = "kern.log",
    raw: str = "",
    **details: Value,
) -> FaultSeen:
    """An event of any kind."""
    return FaultSeen(
        at=T0 + at,
        kind=kind,
        code=code,
        node=node,
        pci=pci,
        pid=pid,
        process=process,
        file=file,
        line=int(at) + 1,
        details=details,
        raw=raw or f"NVRM: Xid ({pci}): {code}, pid={pid} {details}",
    )


def incidents_of(*faults: FaultSeen) -> list[Incident]:
    """The incidents of events given in the order of reading."""
    collected = Incidents()
    for one in faults:
        collected.add(one)
    return [story.incident for story in collected.stories()]


def root_code(incident: Incident) -> int | None:
    """The root's code."""
    return incident.root.code if incident.root else None


def roles(incident: Incident) -> dict[tuple[int | None, str | None], str]:
    """Role by code and PCI address."""
    return {(fact.code, fact.pci): fact.role for fact in incident.facts}
