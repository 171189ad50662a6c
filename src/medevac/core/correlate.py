"""Findings joined by cause: one incident, one root, the others its victims, and what shared thing stands behind."""

from __future__ import annotations

from msgspec.structs import replace

from medevac.core.decision import Finding, Incident, Part, Severity
from medevac.core.events import EnvironmentSeen
from medevac.core.policy import Correlation
from medevac.core.view import View, ordered

RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


def is_open(incident: Incident, now: float, policy: Correlation) -> bool:
    """Whether more may still join: what took something out stays open until that is back, the rest for a while."""
    if incident.closed:
        return False
    return incident.isolates() or now - incident.last <= policy.window_s


def is_new(finding: Finding, view: View, policy: Correlation) -> bool:
    """Not already part of an open incident."""
    return not any(
        old.rule == finding.rule and old.part == finding.part
        for incident in view.incidents.values()
        if is_open(incident, finding.at, policy)
        for old in incident.findings
    )


def correlate(view: View, findings: tuple[Finding, ...], policy: Correlation) -> tuple[Incident, ...]:
    """The incidents that these new findings make or enlarge, as they stand after."""
    changed: dict[str, Incident] = {}
    for finding in findings:
        known = {**dict(view.incidents), **changed}
        home = next((i for i in _newest_first(known) if _joins(finding, i, view, policy)), None)
        grown = replace(home, findings=(*home.findings, finding)) if home else _fresh(finding, view, len(changed))
        changed[grown.id] = _explained(grown, view, policy)
    return tuple(changed.values())


def caused(view: View, event: EnvironmentSeen, policy: Correlation) -> tuple[Incident, ...]:
    """The open incidents that an environment event explains after the fact."""
    if event.state == "ok":
        return ()
    explained = []
    for _, incident in ordered(view.incidents):
        if is_open(incident, view.now, policy):
            new = _explained(incident, view, policy)
            explained += [new] if new != incident else []
    return tuple(explained)


def _newest_first(incidents: dict[str, Incident]) -> list[Incident]:
    return sorted(incidents.values(), key=lambda incident: (-incident.last, incident.id))


def _fresh(finding: Finding, view: View, nth: int) -> Incident:
    name = f"I{view.seq}" if nth == 0 else f"I{view.seq}.{nth}"
    return Incident(id=name, start=finding.at, last=finding.at, root=finding.part, findings=(finding,))


def _joins(finding: Finding, incident: Incident, view: View, policy: Correlation) -> bool:
    if not is_open(incident, finding.at, policy):
        return False
    if any(old.part == finding.part for old in incident.findings):
        return True
    near = abs(finding.at - incident.last) <= policy.window_s
    return near and any(
        old.family == finding.family != "" and _shared(old.part, finding.part, view) for old in incident.findings
    )


def _shared(one: Part, other: Part, view: View) -> Part | None:
    """The smallest thing that both parts hang on: node, NVLink domain, power feed, rack."""
    first, second = view.node_of(one), view.node_of(other)
    if first is None or second is None:
        return None
    if first.name == second.name:
        return Part(domain="node", name=first.name, node=first.name)
    if first.nvlink_domain and first.nvlink_domain == second.nvlink_domain:
        return Part(domain="nvlink", name=first.nvlink_domain)
    if first.feed and first.feed == second.feed:
        return Part(domain="power", name=first.feed)
    return Part(domain="rack", name=first.rack) if first.rack and first.rack == second.rack else None


def _explained(incident: Incident, view: View, policy: Correlation) -> Incident:
    """The incident with root, victims, severity and probable cause worked out anew from its findings."""
    findings = incident.findings
    root = min(findings, key=lambda f: (-RANK[f.severity], f.response != "hard", f.at)).part
    parts = tuple(dict.fromkeys(finding.part for finding in findings))
    cause, why = _cause(incident, parts, view, policy)
    return replace(
        incident,
        start=min(f.at for f in findings),
        last=max(f.at for f in findings),
        root=root,
        victims=tuple(part for part in parts if part != root),
        severity=max((f.severity for f in findings), key=RANK.__getitem__),
        probable_cause=cause,
        why=why,
    )


def _cause(incident: Incident, parts: tuple[Part, ...], view: View, policy: Correlation) -> tuple[Part | None, str]:
    memory = any(finding.family == "memory" for finding in incident.findings)
    for event in view.environment if memory else ():
        hit = [part for part in parts if _under(part, event, view)]
        near = -policy.environment_s <= event.at - incident.start <= policy.environment_s
        if event.state != "ok" and hit and near:
            domain_name = event.feed or event.rack
            where = f"{len(hit)} GPU{'s' if len(hit) > 1 else ''} with memory errors in {event.rack}"
            return Part(domain="power", name=domain_name, node=event.node), f"{event.component} {event.state}: {where}"
    shared = _shared_by_all(parts, view)
    if len(parts) > 1 and shared:
        return shared, f"{len(parts)} GPUs under one {shared.domain} within the window: a shared cause is suspected"
    return None, ""


def _under(part: Part, event: EnvironmentSeen, view: View) -> bool:
    node = view.node_of(part)
    return node is not None and (node.rack == event.rack or (event.feed != "" and node.feed == event.feed))


def _shared_by_all(parts: tuple[Part, ...], view: View) -> Part | None:
    """The widest of the things that the first part shares with each other one; None when one shares nothing."""
    order = ("node", "nvlink", "power", "rack")
    shared = [_shared(parts[0], part, view) for part in parts[1:]]
    known = [part for part in shared if part is not None]
    return max(known, key=lambda part: order.index(part.domain), default=None) if len(known) == len(shared) else None
