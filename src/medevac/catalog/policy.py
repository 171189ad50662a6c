"""Policies from TOML: what a file says over what it extends, checked, with the codes of buckets filled in."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Literal

import msgspec

from medevac.catalog.load import Catalog, load_catalog
from medevac.catalog.schema import CatalogError
from medevac.core.evidence import MOST_FACTS
from medevac.core.policy import Absent, Policy, Predicate, Rule, Seen
from medevac.core.progress import EVIDENCE, HangRule

SHIPPED = ("standard", "local", "demo")
SECTIONS = ("budget", "recovery", "hang", "slow", "lineage", "correlation", "mending")
SHARES = (
    *(("budget", key) for key in ("cluster_share", "rack_share", "nvlink_share", "floor_share")),
    ("recovery", "array_share"),
)


def load_policy(name: str, mode: Literal["act", "monitor"] = "act", read: Callable[[str], str] | None = None) -> Policy:
    """The policy of that shipped name, or of the file that `read` gives for it.

    Raises `CatalogError` naming file and key: an unknown key, an impossible number, a rule without a source.
    """
    where = name if read is None else str(name)
    tables = _tables(name, read)
    rules = tables.pop("rule")
    known = {key: value for key, value in tables.items() if key in {"name", *SECTIONS}}
    policy = _convert(where, {**known, "mode": mode}, Policy)
    catalog = load_catalog()
    policy = msgspec.structs.replace(policy, rules=_expanded(tuple(rules.values()), catalog))
    _check(where, policy)
    digest = hashlib.sha256(msgspec.json.encode(policy) + catalog.hash.encode()).hexdigest()[:16]
    complete: Policy = msgspec.structs.replace(policy, digest=digest)
    return complete


def _tables(name: str, read: Callable[[str], str] | None, depth: int = 0) -> dict[str, Any]:
    """One file laid over what it extends; rules by id."""
    text = read(name) if read else _shipped(name)
    where = name if read else f"policies/{name}.toml"
    own = _toml(where, text)
    unknown = sorted(set(own) - {"name", "extends", "rules", "rule", *SECTIONS})
    if unknown:
        raise CatalogError(
            f"{where}: {unknown[0]}: no such key: use one of name, extends, rules, rule, {', '.join(SECTIONS)}"
        )
    if "name" not in own:
        raise CatalogError(f"{where}: name: missing: give the policy a name")
    base: dict[str, Any] = {"rule": {}}
    if "extends" in own:
        if own["extends"] not in SHIPPED or depth > len(SHIPPED):
            raise CatalogError(f"{where}: extends: no policy {own['extends']!r}: use one of {', '.join(SHIPPED)}")
        base = _tables(own["extends"], None, depth + 1)
    merged: dict[str, Any] = {**base, "name": own["name"]}
    for section in SECTIONS:
        if section in own:
            if not isinstance(own[section], dict):
                raise CatalogError(f"{where}: {section}: must be a table")
            merged[section] = {**base.get(section, {}), **own[section]}
    merged["rule"] = {**base["rule"], **_rules(where, own)}
    return merged


def _rules(where: str, own: Mapping[str, Any]) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for name in own.get("rules", ()):
        path = f"rules/{name}"
        _collect(path, _toml(path, _rule_file(where, name)).get("rule", ()), found)
    _collect(where, own.get("rule", ()), found)
    return found


def _collect(where: str, rows: Any, found: dict[str, Rule]) -> None:
    for nth, row in enumerate(rows, 1):
        rule = _convert(f"{where}: rule {row.get('id', nth)}", row, Rule)
        if not rule.source.strip():
            raise CatalogError(f"{where}: rule {rule.id}: source: empty: say where the rule comes from")
        if not rule.when:
            raise CatalogError(f"{where}: rule {rule.id}: when: empty: name at least one predicate")
        if rule.id in found:
            raise CatalogError(f"{where}: rule {rule.id}: id: stands twice: give one of them another")
        found[rule.id] = rule


def _expanded(rules: tuple[Rule, ...], catalog: Catalog) -> tuple[Rule, ...]:
    """Buckets turned into codes: those of the catalog in the bucket that no rule names itself.

    A rule whose buckets have none left is left out: without codes it would mean all of them.
    """
    named = {code for rule in rules for p in rule.when if isinstance(p, Seen | Absent) for code in p.codes}
    filled = (_with_codes(rule, named, catalog) for rule in rules)
    return tuple(
        rule for rule in filled if not any(isinstance(p, Seen) and p.buckets and not p.codes for p in rule.when)
    )


def _with_codes(rule: Rule, named: set[int], catalog: Catalog) -> Rule:
    when = []
    for predicate in rule.when:
        filled = predicate
        if isinstance(predicate, Seen) and predicate.buckets:
            for bucket in predicate.buckets:
                if bucket not in catalog.buckets:
                    raise CatalogError(f"rule {rule.id}: buckets: no bucket {bucket!r}: see `medevac xid --help`")
            table = catalog.xids if predicate.kind == "xid" else catalog.sxids
            codes = {code for code, entry in table.items() if entry.bucket_now in predicate.buckets}
            filled = msgspec.structs.replace(predicate, codes=(*predicate.codes, *sorted(codes - named)))
        when.append(filled)
    return msgspec.structs.replace(rule, when=tuple(when))


def _check(where: str, policy: Policy) -> None:
    """Numbers that can never be meant, and kinds that no line has."""
    for section in SECTIONS:
        for name, value in msgspec.structs.asdict(getattr(policy, section)).items():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                raise CatalogError(f"{where}: {section}.{name}: {value} can never be meant: write 0 or more")
    _check_hang(where, policy.hang)
    for section, key in SHARES:
        share = getattr(getattr(policy, section), key)
        if not 0.0 <= share <= 1.0:
            raise CatalogError(f"{where}: {section}.{key}: {share} is no share: write 0 to 1")
    positive = {
        "recovery.attempts_without_progress": policy.recovery.attempts_without_progress,
        "recovery.retry_s": policy.recovery.retry_s,
        "recovery.refused_starts": policy.recovery.refused_starts,
        "recovery.array_least": policy.recovery.array_least,
        "hang.window": policy.hang.window,
        "hang.min_steps": policy.hang.min_steps,
        "hang.min_phases": policy.hang.min_phases,
        "slow.window": policy.slow.window,
        "slow.least_steps": policy.slow.least_steps,
        "slow.baseline": policy.slow.baseline,
        "slow.calm": policy.slow.calm,
        "budget.window_s": policy.budget.window_s,
        "correlation.window_s": policy.correlation.window_s,
    }
    for key, value in positive.items():
        if value <= 0:
            raise CatalogError(f"{where}: {key}: {value} can never hold: write a number over 0")
    if not policy.recovery.backoff_s or min(policy.recovery.backoff_s) < 0:
        raise CatalogError(f"{where}: recovery.backoff_s: write at least one number of seconds, none under 0")
    for rule in policy.rules:
        for predicate in rule.when:
            _check_predicate(f"{where}: rule {rule.id}: when", predicate)


def _check_hang(where: str, hang: HangRule) -> None:
    if hang.floor_s > hang.ceiling_s:
        raise CatalogError(
            f"{where}: hang.floor_s: {hang.floor_s} is over hang.ceiling_s, {hang.ceiling_s}: write less"
        )
    for name in hang.confirmed_by:
        if name not in EVIDENCE:
            raise CatalogError(f"{where}: hang.confirmed_by: no look finds {name!r}: use some of {', '.join(EVIDENCE)}")


def _check_predicate(where: str, p: Predicate) -> None:
    if isinstance(p, Seen | Absent):
        known = {*load_catalog().kinds, "xid", "sxid"}
        if p.kind not in known:
            raise CatalogError(f"{where}: kind: no line is a {p.kind!r}: use one of {', '.join(sorted(known))}")
    if isinstance(p, Seen) and p.at_least > MOST_FACTS:
        raise CatalogError(f"{where}: at_least: {p.at_least} never holds: {MOST_FACTS} facts are kept, write fewer")
    for key in ("at_least", "by", "ratio", "within_s"):
        value = getattr(p, key, 1)
        if not 0 < value < math.inf:
            holds = "a threshold of 0 or less holds always" if value <= 0 else f"{value} is no number to compare with"
            raise CatalogError(f"{where}: {key}: {holds}: write more than 0")


def _convert(where: str, data: Any, shape: type[Any]) -> Any:
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{where}: {error}") from error


def _toml(where: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{where}: {error}") from error


def _shipped(name: str) -> str:
    if name not in SHIPPED:
        raise CatalogError(f"policy {name!r}: no such policy: use one of {', '.join(SHIPPED)}, or the path of a file")
    return (files("medevac.catalog") / "policies" / f"{name}.toml").read_text()


def _rule_file(where: str, name: str) -> str:
    path = files("medevac.catalog") / "rules" / name
    if "/" in name or not path.is_file():
        raise CatalogError(f"{where}: rules: no rule file {name!r}: gpu.toml is the one that comes with Medevac")
    return path.read_text()
