"""What one event means: severity, NVIDIA's bucket, our own action where it differs, whose part, does the job die.

The catalog's table speaks first; the line's own words outrank it: `Fatal` and `Non-fatal`, the recovery action of an
Xid 154, `RST:` of a contained or uncontained error, an injected error. A code that the catalog does not know stays
unknown. Pure: the same line always gets the same reading, and readings are kept by what they depend on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from medevac.catalog.load import Catalog, load_catalog
from medevac.catalog.registers import link_row, register_bits, word
from medevac.catalog.schema import NOT_PUBLISHED, UNKNOWN_CODE, Audience, Blame, KindRule, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from medevac.catalog.schema import LinkRow
    from medevac.core.events import FaultSeen, Value

NO_CAUSE = 9
"""`cause` of a reading that explains nothing."""
NVLINK = 74
NVLINK5 = range(144, 151)
_KEPT_AT_MOST = 20_000
_WORDS = (
    "rst",
    "drst",
    "recovery_to",
    "reason",
    "severity",
    "fatal",
    "injected",
    "unit",
    "intrinfo",
    "errorstatus",
    "registers",
    "event",
    "state",
    "class",
    "previous_boot",
    "injector",
    "driver",
    "activation",
)


class PolicyAction(msgspec.Struct, frozen=True, kw_only=True):
    """Our action where it is not the bucket's, and the id of the rule that says so."""

    action: str
    rule: str


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """How an event is read. `action` is NVIDIA's bucket, None where there is none for such a line."""

    meaning: str
    severity: Severity
    action: str | None = None
    policy_action: PolicyAction | None = None
    after: str = NOT_PUBLISHED
    blame: Blame = "none"
    kills_job: bool | None = None
    audience: Audience = "operator"
    cause: int = 9
    """Order of causes in an incident: the lowest is the root (0 lost GPU .. 9 never a cause)."""
    note: str = ""
    """What registers and status words add."""

    @property
    def now(self) -> str:
        """The action to take now: ours where we differ."""
        return self.policy_action.action if self.policy_action else self.action or NOT_PUBLISHED


INJECTED: dict[str, Any] = {
    "severity": "info",
    "policy_action": PolicyAction(action="IGNORE", rule="injected"),
    "after": "IGNORE",
    "note": "injected by a test",
    "blame": "none",
    "kills_job": None,
    "cause": 9,
}
UNKNOWN_XID = Annotation(meaning=f"Xid {UNKNOWN_CODE}", severity="unknown", blame="unknown", cause=5)
UNREAD = Annotation(meaning="A line of a kind that has no rule", severity="unknown")


class Annotator:
    """Reads events by one catalog."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        self.catalog = catalog or load_catalog()
        self._known: dict[tuple[object, ...], Annotation] = {}
        rules = [rule for rules in self.catalog.kinds.values() for rule in rules if rule.when]
        self._wordy = {"sxid", *(rule.kind for rule in rules)} - {"xid"}
        self._wordy_xids = {NVLINK, *NVLINK5, *(code for rule in rules if rule.kind == "xid" for code in rule.codes)}

    def annotate(self, fault: FaultSeen) -> Annotation:
        """The reading of one event."""
        kind, code, details = fault.kind, fault.code, fault.details
        wordy = code in self._wordy_xids if kind == "xid" else kind in self._wordy
        words = tuple([details.get(word) for word in _WORDS]) if wordy and details else ()
        key = (kind, code, words)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KEPT_AT_MOST:
                self._known.clear()
            known = self._known[key] = self._read(kind, code, details)
        return known

    def _read(self, kind: str, code: int | None, details: Mapping[str, Value]) -> Annotation:
        rule = next((rule for rule in self.catalog.kinds.get(kind, ()) if _fits(rule, code, details)), None)
        if kind == "xid" and code is not None:
            return self._xid(code, details, rule)
        if kind == "sxid" and code is not None:
            return self._sxid(code, details)
        if rule is None:
            return _cleared(kind) or UNREAD
        return self._by_rule(rule)

    def _by_rule(self, rule: KindRule) -> Annotation:
        like = None if rule.as_xid is None else self.catalog.xid(rule.as_xid)
        return Annotation(
            meaning=rule.meaning,
            severity=rule.severity,
            action=like.bucket_now if like else None,
            policy_action=None if like else PolicyAction(action=rule.action, rule=rule.id),
            after=rule.after or "IGNORE",
            blame=rule.blame,
            kills_job=rule.kills_job,
            audience=rule.audience,
            cause=rule.cause,
        )

    def _xid(self, code: int, details: Mapping[str, Value], rule: KindRule | None) -> Annotation:
        entry = self.catalog.xid(code)
        if entry is None:
            return UNKNOWN_XID
        base = Annotation(
            meaning=entry.meaning,
            severity=entry.severity,
            action=entry.bucket_now,
            after=entry.bucket_after,
            blame=_blame(entry.category, details) if entry.cause < NO_CAUSE else "none",
            kills_job=entry.kills_job,
            audience=entry.audience,
            cause=entry.cause,
        )
        if code in NVLINK5:
            return self._link_error(code, details, base)
        if code == NVLINK:
            return self._link_registers(details, base)
        return base if rule is None else _with_rule(base, rule)

    def _link_error(self, code: int, details: Mapping[str, Value], base: Annotation) -> Annotation:
        """Xid 144 to 150: the row that unit, reason and errorStatus name; the line's own word outranks it."""
        if details.get("injected") == "yes":
            return msgspec.structs.replace(base, **INJECTED)
        info, status = word(details.get("intrinfo")), word(details.get("errorstatus"))
        row = link_row(self.catalog.link_units, code, str(details.get("unit", "")), info, status)
        said = str(details.get("severity", "")).lower().replace("-", "")
        severity, rule = _link_severity(row, said, base.severity)
        action = {"line-says-fatal": "RESET_GPU", "line-says-non-fatal": "XID_154_EVAL"}.get(rule)
        return msgspec.structs.replace(
            base,
            severity=severity,
            action=row.bucket_now if row else base.action,
            policy_action=PolicyAction(action=action, rule=rule) if action else None,
            after=row.bucket_after if row else base.after,
            kills_job=True if severity == "critical" else base.kills_job,
            note=_effects(row),
        )

    def _link_registers(self, details: Mapping[str, Value], base: Annotation) -> Annotation:
        """Xid 74: what the bits of its register words ask for; `fatal` in the line makes it critical."""
        found = register_bits(self.catalog.registers, str(details.get("registers", "")).split())
        fatal = str(details.get("severity", "")).lower() == "fatal"
        worst = max(found, key=lambda bits: self.catalog.buckets[bits.bucket].rank or 0, default=None)
        harmless = worst is not None and worst.bucket == "IGNORE"
        return msgspec.structs.replace(
            base,
            severity="critical" if fatal else "info" if harmless else base.severity,
            policy_action=PolicyAction(action=worst.bucket, rule="nvlink-registers") if worst else None,
            kills_job=True if fatal else base.kills_job,
            note="; ".join(dict.fromkeys(bits.meaning for bits in found)),
        )

    def _sxid(self, code: int, details: Mapping[str, Value]) -> Annotation:
        entry = self.catalog.sxid(code)
        severity: Severity = entry.severity if entry else "unknown"
        rule = None
        if details.get("fatal") == "yes":
            severity, rule = "critical", "switch-says-fatal"
        elif details.get("fatal") == "no" and severity in {"critical", "unknown"}:
            severity, rule = "warning", "switch-says-non-fatal"
        action = entry.bucket_now if entry else None
        policy = _switch_action(action, severity, rule)
        return Annotation(
            meaning=entry.meaning if entry else "SXid that the catalog does not know",
            severity=severity,
            action=action,
            policy_action=policy,
            after=entry.bucket_after if entry else NOT_PUBLISHED,
            blame="link" if "link" in details else "node",
            kills_job=True if severity == "critical" else None,
            cause={"critical": 2, "warning": 4, "unknown": 4, "info": 7}[severity],
        )


def _link_severity(row: LinkRow | None, said: str, table: Severity) -> tuple[Severity, str]:
    """Severity of an NVLink 5 line, and the rule where its own word changed what the row says."""
    severity = table
    if row is not None:
        severity = "critical" if row.bucket_now == "RESET_GPU" else "info" if row.bucket_now == "IGNORE" else "warning"
    if said == "fatal" and severity != "critical":
        return "critical", "line-says-fatal"
    if said == "nonfatal" and (severity == "critical" or row is None):
        return "warning", "line-says-non-fatal"
    return severity, ""


def _effects(row: LinkRow | None) -> str:
    if row is None:
        return ""
    return "; ".join(filter(None, (row.where, row.here and f"here: {row.here}", row.peer and f"peer: {row.peer}")))


def _switch_action(action: str | None, severity: Severity, rule: str | None) -> PolicyAction | None:
    """A fatal switch error asks for a reset whatever the table lacks; a non-fatal one for nothing at once."""
    if rule == "switch-says-fatal" and action in {None, NOT_PUBLISHED, "IGNORE"}:
        return PolicyAction(action="RESET_GPU", rule=rule)
    if rule == "switch-says-non-fatal" and severity == "warning" and action not in {None, NOT_PUBLISHED}:
        return PolicyAction(action="IGNORE", rule=rule)
    return None


def _with_rule(base: Annotation, rule: KindRule) -> Annotation:
    differs = rule.action != base.action
    return msgspec.structs.replace(
        base,
        meaning=rule.meaning,
        severity=rule.severity,
        policy_action=PolicyAction(action=rule.action, rule=rule.id) if differs else None,
        after=rule.after or base.after,
        blame=rule.blame,
        kills_job=rule.kills_job,
        cause=rule.cause,
    )


def _fits(rule: KindRule, code: int | None, details: Mapping[str, Value]) -> bool:
    if rule.codes and code not in rule.codes:
        return False
    return all(_holds(wanted, details.get(name)) for name, wanted in rule.when.items())


def _holds(wanted: object, found: Value) -> bool:
    if found is None:
        return False
    if wanted is True:
        return True
    if isinstance(wanted, tuple):
        return any(_holds(one, found) for one in wanted)
    if isinstance(wanted, str) and wanted.endswith("*"):
        return str(found).lower().startswith(wanted[:-1].lower())
    return str(found).lower() == str(wanted).lower()


def _blame(category: str, details: Mapping[str, Value]) -> Blame:
    if category == "software/app":
        return "job"
    if category == "nvlink":
        return "link" if isinstance(link := details.get("link"), int) and link >= 0 else "gpu"
    return "gpu"


def _cleared(kind: str) -> Annotation | None:
    """Lines that only say that something ended, or go on from a first line that is not in the log."""
    if kind.endswith("_clear"):
        done = PolicyAction(action="IGNORE", rule="all-clear")
        return Annotation(meaning="All clear", severity="info", policy_action=done)
    if kind.endswith("_continuation"):
        return Annotation(meaning="Goes on from a line that is not in this log", severity="info")
    return None
