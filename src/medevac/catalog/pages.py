"""Catalog entries as text: the same words for `medevac xid`, the docs and the web. Markdown, readable as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medevac.catalog.schema import NOT_PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from medevac.catalog.load import Catalog
    from medevac.catalog.schema import KindRule, SxidEntry, XidEntry

OTHERS = {"gpud": "gpud", "nvsentinel": "NVSentinel"}
MODELS = ("A100", "H100", "B100", "GB200")
"""The models that NVIDIA's table has a column for."""
DIES = {True: "yes", False: "no", None: "depends"}
GENERATIONS = {"a800": "A100", "h20": "H100", "h200": "H100", "h800": "H100", "b200": "B100", "gb300": "GB200"}
"""Models that the tables do not name, by the model whose column holds for them."""


def bucket_line(catalog: Catalog, name: str) -> str:
    """`RESET_GPU: reset the GPU`; or the words "not published"."""
    if name == NOT_PUBLISHED:
        return NOT_PUBLISHED
    return f"{name}: {catalog.buckets[name].meaning}"


def xid_page(catalog: Catalog, entry: XidEntry, gpu: str | None = None) -> str:
    """All that is known of an Xid code; `gpu` adds whether that model can print it."""
    lines = [
        f"## Xid {entry.code}: {entry.meaning}",
        "",
        f"`{entry.name}`, {entry.category}",
        "",
        f"- Severity: {entry.severity}; the job on it dies: {DIES[entry.kills_job]}; for: {entry.audience}",
        f"- Do now: {bucket_line(catalog, entry.bucket_now)}",
        f"- Do after: {bucket_line(catalog, entry.bucket_after)}",
        f"- GPUs: {_models(entry)}",
    ]
    if gpu is not None:
        lines.append(f"- On {gpu}: {applies(entry, gpu)}")
    if entry.recovery_action:
        lines.append(f"- An Xid 154 names the recovery action since: {entry.recovery_action}")
    if entry.seen:
        lines.append(f"- Seen: {entry.seen}")
    lines += _section("Usual causes", entry.causes)
    lines += _section("Evidence to look for", entry.evidence)
    lines += _section("What our rules add, by the line's own words", xid_rules(catalog, entry.code))
    return "\n".join(lines + _tail(catalog, entry)) + "\n"


def sxid_page(catalog: Catalog, entry: SxidEntry) -> str:
    """All that is known of an SXid code."""
    lines = [
        f"## SXid {entry.code}: {entry.meaning}",
        "",
        f"`{entry.name}`, {entry.category}",
        "",
        f"- Severity: {entry.severity} (a line that says Fatal or Non-fatal outranks this)",
        f"- Class in the Fabric Manager guide: {entry.class_}",
        f"- Do now: {bucket_line(catalog, entry.bucket_now)}",
        f"- Do after: {bucket_line(catalog, entry.bucket_after)}",
    ]
    if entry.steps:
        lines.append(f"- Steps: {entry.steps}")
    lines += [f"- The driver reports on {switch}: {word}" for switch, word in entry.driver.items()]
    return "\n".join(lines + _tail(catalog, entry)) + "\n"


def applies(entry: XidEntry, gpu: str) -> str:
    """Whether a GPU model can print this code, in words."""
    model = gpu.strip().upper()
    model = GENERATIONS.get(model.lower(), model)
    if model not in MODELS:
        alike = ", ".join(name.upper() for name in GENERATIONS)
        return f"unknown: NVIDIA's table has no such model; it has {', '.join(MODELS)}, which hold for {alike} too"
    if entry.gpus is None:
        return NOT_PUBLISHED
    return "can occur" if model in entry.gpus else "not expected on this model"


def xid_rules(catalog: Catalog, code: int) -> list[str]:
    """The rules that read more from a line of this code than its number."""
    rules = [rule for rule in catalog.kinds.get("xid", ()) if code in rule.codes]
    return [
        f"{_conditions(rule.when) if rule.when or len(rules) > 1 else 'in any line'}: {rule.severity}, {rule.action}"
        f"{f', then {rule.after}' if rule.after else ''} (rule {rule.id})"
        for rule in rules
    ]


def _conditions(when: dict[str, str | int | bool | tuple[str, ...]]) -> str:
    if not when:
        return "in all other lines"
    return " and ".join(
        f"{name} is {' or '.join(wanted) if isinstance(wanted, tuple) else wanted}" for name, wanted in when.items()
    )


def _models(entry: XidEntry) -> str:
    if entry.gpus is None:
        return NOT_PUBLISHED
    return ", ".join(entry.gpus) or f"none of {', '.join(MODELS)}"


def _section(title: str, items: Iterable[str]) -> list[str]:
    found = list(items)
    return ["", f"{title}:", *(f"- {item}" for item in found)] if found else []


def _tail(catalog: Catalog, entry: XidEntry | SxidEntry) -> list[str]:
    others = [f"{OTHERS.get(name, name)}: {action}" for name, action in entry.others.items()]
    sources = [" ".join(filter(None, (catalog.sources[id_].title, catalog.sources[id_].url))) for id_ in entry.sources]
    return [
        *_section("What other systems do", others),
        *_section("Where the sources disagree", entry.disagreements),
        *_section(f"Sources (checked {entry.checked})", sources),
    ]


def rule_rows(catalog: Catalog) -> list[str]:
    """A row of a Markdown table for each rule of kinds.toml."""
    return [
        f"| {kind} | {_where(rule)} | {rule.meaning} | {rule.severity} | {rule.action} | {rule.blame} | {rule.id} |"
        for kind, rules in catalog.kinds.items()
        for rule in rules
    ]


def _where(rule: KindRule) -> str:
    codes = f"code {', '.join(map(str, rule.codes))}" if rule.codes else ""
    when = _conditions(rule.when) if rule.when else "" if codes else "all other"
    return "; ".join(filter(None, (codes, when)))
