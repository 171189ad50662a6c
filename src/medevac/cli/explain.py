"""`medevac explain [TARGET]`: why something was done, or what happened to it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from medevac.cli import audit, incident
from medevac.cli.exits import Exit
from medevac.cli.history import History, Settled, kind, read, reason
from medevac.cli.output import CommandError, console, moment, print_json
from medevac.core.decision import Decision, Finding
from medevac.core.events import EccCounted, FaultSeen
from medevac.core.evidence import fact_key
from medevac.report.story import build, render_html, render_text, to_json
from medevac.report.words import clause, count, listed

MOST_EVENTS = 12


def explain(
    target: str | None = None,
    /,
    *,
    state_dir: Path | None = None,
    html: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Say why: of a decision (D12), an incident (I7), an action's id, a GPU, a node or a job; else of the last job.

    Parameters
    ----------
    target
        What to explain.
    state_dir
        The state folder, or the file of a store.
    html
        Write a job's story as one HTML file.
    json
        Print one JSON object.
    """
    history = read(state_dir)
    jobs = history.view.jobs
    if target is None and not jobs:
        raise CommandError(f"{history.path}: holds no job; name a decision, an incident or a GPU")
    if target is None or target in jobs:
        return _job(history, target or "", html, json=json)
    if html is not None:
        raise CommandError(f"--html: only a job has a story to write; {target} is none")
    if target in history.decisions:
        one = history.decisions[target]
        print_json(audit.as_json(history, one)) if json else _print(_decision(history, one))
    elif target in history.view.incidents:
        found = history.view.incidents[target]
        print_json(incident.as_json(history, found)) if json else _print(iter(incident.lines(history, found)))
    elif target in history.actions:
        settled = history.actions[target]
        print_json(settled) if json else _print(_action(history, settled))
    elif (device := _device_named(history, target)) is not None:
        print_json(_device_json(history, device)) if json else _print(_device(history, device))
    else:
        raise CommandError(_unknown(history, target))
    return Exit.DONE


def _print(lines: Iterator[str]) -> None:
    print("\n".join(lines))


def _job(history: History, job: str, html: Path | None, *, json: bool) -> Exit:
    story = build(history.records, job)
    if html is not None:
        try:
            html.write_text(render_html(story), encoding="utf-8")
        except OSError as problem:
            raise CommandError(f"--html {html}: cannot be written: {problem.strerror}") from problem
    print_json(to_json(story)) if json else render_text(story, console())
    return Exit.DONE


def _decision(history: History, decision: Decision) -> Iterator[str]:
    names = history.names
    yield f"{decision.id} at {moment(decision.at)}, policy {decision.policy or 'unknown'}"
    record = history.events.get(decision.cause)
    if record:
        yield f"answers event {record.seq}: {names.plain(msgspec.json.encode(record.event).decode())}"
    yield f"reason: {reason(history, decision)}"
    for finding in decision.findings:
        yield from _finding(history, finding)
    for one in decision.incidents:
        cause = f", probable cause {names.part(one.probable_cause)} ({one.why})" if one.probable_cause else ""
        yield f"incident {one.id}: {one.severity}, root {names.part(one.root)}{cause}"
    for moved in decision.moved:
        why = f": {names.plain(moved.trigger.why)}" if moved.trigger.why else ""
        yield f"moved {names.gpu(moved.trigger.who)}: {moved.source} -> {moved.target} on {moved.trigger.on}{why}"
    for line in audit.action_lines(history, decision):
        yield f"action {line}"


def _finding(history: History, finding: Finding) -> Iterator[str]:
    yield f"finding {finding.rule}: {history.names.part(finding.part)}: {finding.meaning}"
    for one in finding.clauses:
        yield f"    because {clause(one)}"
    matched = list(_matched(history, finding))
    for seq, text in matched[-MOST_EVENTS:]:
        yield f"    event {seq}: {text}"
    if len(matched) > MOST_EVENTS:
        yield f"    and {count(len(matched) - MOST_EVENTS, 'earlier event')}"


def _matched(history: History, finding: Finding) -> Iterator[tuple[int, str]]:
    """The events that a finding stands on: its facts, or the reading that made a counter's rule hold."""
    seen = set()
    for seq, record in history.events.items():
        event = record.event
        if isinstance(event, FaultSeen) and history.view.part(event).name == finding.part.name:
            key = fact_key(event)
            if key in finding.facts and key not in seen:
                seen.add(key)
                yield seq, f"{moment(event.at)} {event.raw or f'{event.kind} {event.code} {event.details}'}"
        elif isinstance(event, EccCounted) and event.gpu == finding.part.name and event.at == finding.at:
            counted = f"sbe {event.sbe}, dbe {event.dbe}, remapped rows {event.remapped_rows}"
            yield seq, f"{moment(event.at)} counters of {history.names.gpu(event.gpu)}: {counted}"


def _action(history: History, settled: Settled) -> Iterator[str]:
    action, names = settled.action, history.names
    yield f"{action.id}: {kind(action)}: {names.action(action)}"
    yield f"reason: {names.plain(action.reason) or 'none given'}"
    yield f"decided in {settled.decision.id} at {moment(settled.decision.at)}: {names.plain(settled.decision.reason)}"
    if action.cause in history.view.incidents:
        yield f"cause: incident {action.cause}"
    when = "" if settled.at is None else f" at {moment(settled.at)}"
    yield f"outcome: {settled.outcome}{when}" + (f": {settled.why}" if settled.why else "")


def _device_named(history: History, target: str) -> str | None:
    """A GPU by its UUID, or the only one that begins so, or by its label; a node by its name."""
    view, wanted = history.view, target.casefold()
    names = [*view.owners, *view.nodes]
    if target in names:
        return target
    by_label = [uuid for uuid in view.owners if history.names.gpu(uuid).casefold() == wanted]
    near = by_label or [uuid for uuid in view.owners if uuid.casefold().startswith(wanted)]
    return near[0] if len(near) == 1 else None


def _device_json(history: History, name: str) -> dict[str, object]:
    view = history.view
    return {
        "name": name,
        "where": history.names.gpu(name),
        "device": view.device(name),
        "doubts": view.doubts.get(name, ()),
        "incidents": sorted(i.id for i in view.incidents.values() if any(f.part.name == name for f in i.findings)),
        "decisions": [one.id for one in _about(history, name)],
        "jobs": sorted(job.spec.job for job in view.jobs.values() if name in job.gpus() | job.nodes()),
    }


def _device(history: History, name: str) -> Iterator[str]:
    view, names = history.view, history.names
    device = view.device(name)
    since = f" since {moment(device.since)}" if device.since else ""
    because = f", incident {device.cause}" if device.cause else ""
    yield f"{names.gpu(name)} ({name}): {device.state}{since}{because}"
    for doubt in view.doubts.get(name, ()):
        until = f" until {moment(doubt.until)}" if doubt.until is not None else ""
        yield f"its results are in doubt from {moment(doubt.since)}{until}: {doubt.why}"
    users = [job.spec.job for _, job in sorted(view.jobs.items()) if name in job.gpus() | job.nodes()]
    yield f"used by: {listed(users) or 'no job'}"
    for decision in _about(history, name):
        yield f"{moment(decision.at)}  {decision.id}  {reason(history, decision)}"
        for line in audit.action_lines(history, decision):
            yield f"    {line}"


def _about(history: History, name: str) -> list[Decision]:
    return [
        one
        for one in history.decisions.values()
        if any(f.part.name == name for f in one.findings)
        or any(m.trigger.who == name for m in one.moved)
        or any(getattr(h.action, "gpu", "") == name for h in one.held)
    ]


def _unknown(history: History, target: str) -> str:
    view = history.view
    names = [*history.decisions, *view.incidents, *view.jobs, *view.owners, *view.nodes, *history.actions]
    near = difflib.get_close_matches(target, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    last = next(reversed(history.decisions), "none")
    has = [
        f"{count(len(history.decisions), 'decision')} (the last is {last})",
        f"incidents {listed(sorted(view.incidents)) or 'none'}",
        f"jobs {listed(sorted(view.jobs)) or 'none'}",
        f"{count(len(view.owners), 'GPU')} on {listed(view.nodes) or 'no node'}",
    ]
    return f"{target}: the log knows no such thing.{hint} It has {'; '.join(has)}"
