"""`medevac incident list` and `medevac incident show ID`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from medevac.cli.exits import Exit
from medevac.cli.history import History, read
from medevac.cli.output import CommandError, moment, print_json, print_rows
from medevac.core.decision import Incident
from medevac.report.words import clause, listed

app = App(name="incident", help="List incidents, or show one.")


@app.command(name="list")
def list_all(
    *,
    state_dir: Path | None = None,
    open: Annotated[bool, Parameter(negative="")] = False,  # noqa: A002 - the flag's name
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """List incidents, oldest first.

    Parameters
    ----------
    state_dir
        The state folder, or the file of a store.
    open
        Only those that are not closed.
    json
        Print one JSON object a line.
    """
    history = read(state_dir)
    found = sorted(history.view.incidents.values(), key=lambda one: (one.start, one.id))
    shown = [one for one in found if not (open and one.closed)]
    if json:
        for one in shown:
            print_json(as_json(history, one))
    elif shown:
        columns = ("incident", "state", "severity", "start", "root", "victims", "probable cause")
        print_rows(columns, [_row(history, one) for one in shown])
    else:
        print("no incidents")
    return Exit.DONE


@app.command
def show(
    incident: str, /, *, state_dir: Path | None = None, json: Annotated[bool, Parameter(negative="")] = False
) -> Exit:
    """Show one incident: who is blamed and why, and what was done about it.

    Parameters
    ----------
    incident
        Its id, as `medevac incident list` has it.
    state_dir
        The state folder, or the file of a store.
    json
        Print one JSON object.
    """
    history = read(state_dir)
    one = history.view.incidents.get(incident)
    if one is None:
        known = listed(sorted(history.view.incidents)) or "none"
        raise CommandError(f"incident {incident}: the log has no such; it has {known}")
    print_json(as_json(history, one)) if json else print("\n".join(lines(history, one)))
    return Exit.DONE


def as_json(history: History, incident: Incident) -> dict[str, Any]:
    """The incident as recorded, with `actions` that it caused: id, kind, outcome, settled_at."""
    told: dict[str, Any] = msgspec.to_builtins(incident)
    told["actions"] = [
        {"id": one.action.id, "type": type(one.action).__name__, "outcome": one.outcome, "settled_at": one.at}
        for one in history.actions.values()
        if one.action.cause == incident.id
    ]
    return told


def lines(history: History, incident: Incident) -> list[str]:
    """The incident for a person."""
    names, state = history.names, "closed" if incident.closed else "open"
    told = [
        f"{incident.id}: {incident.severity}, {state}, since {moment(incident.start)}",
        f"root: {names.part(incident.root)} ({incident.root.name})",
    ]
    if incident.victims:
        told.append(f"also hit: {listed(names.part(part) for part in incident.victims)}")
    if incident.probable_cause:
        told.append(f"probable cause: {names.part(incident.probable_cause)} ({names.plain(incident.why)})")
    told.append("findings:")
    for finding in sorted(incident.findings, key=lambda one: one.at):
        told.append(f"  {moment(finding.at)}  {names.part(finding.part)}: {finding.meaning} [{finding.rule}]")
        told += [f"      because {clause(one)}" for one in finding.clauses]
        told += [f"      then: {finding.repair}"] if finding.repair else []
    caused = [one for one in history.actions.values() if one.action.cause == incident.id]
    told += ["what was done:"] if caused else []
    told += [f"  {one.outcome:8} {names.action(one.action)} ({one.decision.id}, {one.action.id})" for one in caused]
    return told


def _row(history: History, one: Incident) -> tuple[str, ...]:
    names = history.names
    return (
        one.id,
        "closed" if one.closed else "open",
        one.severity,
        moment(one.start),
        names.part(one.root),
        listed(names.part(part) for part in one.victims) or "-",
        f"{names.part(one.probable_cause)} ({one.why})" if one.probable_cause else "-",
    )
