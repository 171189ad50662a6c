"""Short makers of events for these tests."""

from __future__ import annotations

from typing import Any

from medevac.core.events import FaultSeen, Value
from medevac.decode.incidents import Incident, Incidents

T0 = 1_772_000_000.0
GPU = "0000:3b:00.0"
PEER = "0000:5e:00.0"


def xid(code: int, at: float = 0.0, *, node: str = "node1", pci: str | None = GPU, **more: Any) -> FaultSeen:
    """An Xid `at` seconds after T0; `more` as in `fault`."""
    return fault("xid", at, code=code, node=node, pci=pci, **more)


def fault(
    kind: str,
    at: float = 0.0,
    *,
    code: int | None = None,
    node: str = "node1",
    pci: str | None = None,
    **more: Any,
) -> FaultSeen:
    """An event of any kind: `more` is pid, process, file, raw, and details."""
    pid: int | None = more.pop("pid", None)
    process: str | None = more.pop("process", None)
    file: str = more.pop("file", "kern.log")
    raw: str = more.pop("raw", f"NVRM: Xid ({pci}): {code}, pid={pid} {more}")
    details: dict[str, Value] = more
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
        raw=raw,
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
