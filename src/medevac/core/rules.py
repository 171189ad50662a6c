"""Rules on evidence: which findings an event gives rise to, with the clauses that held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from medevac.core.decision import Clause, Finding, Part
from medevac.core.events import EccCounted, FaultSeen
from medevac.core.evidence import Evidence, Fact
from medevac.core.health_score import Condition, health_score
from medevac.core.policy import Absent, HealthUnder, Lineage, OverPeers, Policy, Predicate, Rose, Rule, Seen, Total

DAY_S = 86_400.0


def findings(
    event: FaultSeen | EccCounted, part: Part, evidence: Evidence, peers: Mapping[str, Evidence], policy: Policy
) -> Iterable[Finding]:
    """The rules that this event makes true about its part, in the order of the policy."""
    for rule in policy.rules:
        if not any(concerns(predicate, event) for predicate in rule.when):
            continue
        held = [_hold(predicate, event.at, evidence, peers, part) for predicate in rule.when]
        if all(held):
            yield _finding(rule, event, part, evidence, [clause for clause in held if clause], policy.lineage)


def concerns(predicate: Predicate, event: FaultSeen | EccCounted) -> bool:
    """Whether an event of this kind can make the predicate true."""
    if isinstance(event, EccCounted):
        return isinstance(predicate, Rose | Total | OverPeers | HealthUnder)
    if not isinstance(predicate, Seen) or predicate.kind != event.kind:
        return False
    return (not predicate.codes or event.code in predicate.codes) and _fits(predicate, event.details)


def _finding(
    rule: Rule, event: FaultSeen | EccCounted, part: Part, evidence: Evidence, clauses: list[Clause], lineage: Lineage
) -> Finding:
    return Finding(
        rule=rule.id,
        part=part,
        severity=rule.severity,
        meaning=rule.meaning,
        response="page" if rule.pages and rule.response == "none" else rule.response,
        repair=rule.repair,
        mends=rule.mends,
        readmit=rule.readmit,
        family=rule.family,
        at=event.at,
        doubt_from=doubt_from(event, evidence, lineage) if rule.doubts else None,
        clauses=tuple(clauses),
        facts=tuple(fact.key for fact in _facts(rule, event.at, evidence))[-12:],
    )


def doubt_from(event: FaultSeen | EccCounted, evidence: Evidence, lineage: Lineage) -> float:
    """Since when the part's results are in doubt: after the last reading that showed no new uncorrected error."""
    earlier = [r.at for r in evidence.readings if r.at < event.at]
    if evidence.sound_at is None or not earlier:
        return event.at - lineage.blind_s
    return min(evidence.sound_at, event.at - lineage.margin_s)


def _facts(rule: Rule, now: float, evidence: Evidence) -> list[Fact]:
    return [fact for p in rule.when if isinstance(p, Seen) for fact in _matching(p, now, evidence)]


def _hold(
    predicate: Predicate, now: float, evidence: Evidence, peers: Mapping[str, Evidence], part: Part
) -> Clause | None:
    """The clause with its numbers where the predicate holds, else None."""
    match predicate:
        case Seen():
            found = len(_matching(predicate, now, evidence))
            says = f"{_name(predicate)} within {_span(predicate.within_s)}"
            return Clause(says=says, value=found, limit=predicate.at_least) if found >= predicate.at_least else None
        case Absent():
            some = evidence.count(predicate.kind, predicate.codes, now - predicate.within_s)
            return None if some else Clause(says=f"no {_name(predicate)} within {_span(predicate.within_s)}")
        case Rose():
            grown = evidence.growth(predicate.counter, now - predicate.within_s)
            says = f"{predicate.counter} grew within {_span(predicate.within_s)}"
            return Clause(says=says, value=grown, limit=predicate.by) if grown >= predicate.by else None
        case Total():
            value = evidence.readings[-1].value(predicate.counter) if evidence.readings else 0
            reached = value >= predicate.at_least
            return (
                Clause(says=f"{predicate.counter} in all", value=value, limit=predicate.at_least) if reached else None
            )
        case OverPeers():
            return _over_peers(predicate, now, evidence, peers, part)
        case HealthUnder():
            high = health_score(condition(evidence, now), predicate.weights).high
            says = "health score, at most"
            return Clause(says=says, value=round(high, 3), limit=predicate.score) if high < predicate.score else None


def condition(evidence: Evidence, now: float) -> Condition:
    """What a GPU's counters tell of its health; its age and its heat are measured by nobody yet."""
    if not evidence.readings:
        return Condition()
    return Condition(
        sbe_7d=evidence.growth("sbe", now - 7 * DAY_S),
        dbe_30d=evidence.growth("dbe", now - 30 * DAY_S),
        retired=evidence.readings[-1].remapped_rows,
    )


def _over_peers(
    predicate: OverPeers, now: float, evidence: Evidence, peers: Mapping[str, Evidence], part: Part
) -> Clause | None:
    since = now - predicate.within_s
    grown = evidence.growth(predicate.counter, since)
    if grown < predicate.by:
        return None
    others = [e.growth(predicate.counter, since) for name, e in peers.items() if name != part.name and e.readings]
    if not others:
        return None
    limit = max(median(others), 1) * predicate.ratio
    says = f"{predicate.counter} within {_span(predicate.within_s)}, against the median of {len(others)} other GPUs"
    return Clause(says=says, value=grown, limit=limit) if grown > limit else None


def _matching(predicate: Seen, now: float, evidence: Evidence) -> list[Fact]:
    some = evidence.count(predicate.kind, predicate.codes, now - predicate.within_s)
    return [fact for fact in some if _fits(predicate, fact.details)]


def _fits(predicate: Seen, details: Mapping[str, object]) -> bool:
    return all(details.get(key) == value for key, value in predicate.where.items()) and not any(
        details.get(key) == value for key, value in predicate.unless.items()
    )


def _name(predicate: Seen | Absent) -> str:
    codes = ", ".join(map(str, predicate.codes[:6])) + (" ..." if len(predicate.codes) > 6 else "")
    return f"{predicate.kind} {codes}".strip()


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
