"""`medevac status`: how things stand, by the log of a state folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from medevac.cli.exits import Exit
from medevac.cli.history import History, kind, read
from medevac.cli.output import moment, print_json, print_rows
from medevac.core.jobs import Job
from medevac.core.node_lifecycle import IN_SERVICE
from medevac.core.view import Device

Rows = list[dict[str, Any]]


def status(*, state_dir: Path | None = None, json: Annotated[bool, Parameter(negative="")] = False) -> Exit:
    """Say how things stand: jobs, what is out of service, open incidents, what is held back or under way.

    Parameters
    ----------
    state_dir
        The state folder, or the file of a store (else as `medevac run` has it).
    json
        Print one JSON object.
    """
    now = as_json(read(state_dir))
    if json:
        print_json(now)
        return Exit.DONE
    print(f"{'paused by an operator, ' if now['paused'] else ''}as of {moment(now['at'])}")
    for title, rows in (
        ("Jobs", now["jobs"]),
        ("Out of service", now["devices"]),
        ("Restricted", now["restricted"]),
        ("Open incidents", now["incidents"]),
        ("Held back", now["held"]),
        ("Under way", now["pending"]),
    ):
        print(f"\n{title}: {len(rows) or 'none'}")
        if rows:
            print_rows(tuple(rows[0]), [tuple(_cell(key, value) for key, value in row.items()) for row in rows])
    return Exit.DONE


def as_json(history: History) -> dict[str, Any]:
    """The object of --json: `at` (unix seconds), `paused`, and lists: jobs, devices (out of service), restricted,
    incidents, held, pending.
    """
    view, names = history.view, history.names
    devices = sorted(view.devices.values(), key=lambda device: device.name)
    incidents: Rows = [
        {
            "incident": one.id,
            "severity": one.severity,
            "root": names.part(one.root),
            "cause": names.part(one.probable_cause) if one.probable_cause else "",
            "victims": len(one.victims),
            "last": one.last,
        }
        for one in sorted(view.incidents.values(), key=lambda one: one.start)
        if not one.closed
    ]
    held: Rows = [
        {
            "action": one.action.id,
            "what": names.action(one.action),
            "guard": one.guard,
            "why": names.plain(one.why),
            "until": one.until,
        }
        for _, one in sorted(view.held.items())
    ]
    return {
        "at": view.now,
        "paused": view.paused,
        "jobs": [_job(history, job) for _, job in sorted(view.jobs.items())],
        "devices": [_device(history, d) for d in devices if d.state not in IN_SERVICE],
        "restricted": [_device(history, d) for d in devices if d.state in IN_SERVICE and d.state != "healthy"],
        "incidents": incidents,
        "held": held,
        "pending": [
            {"action": key, "kind": kind(action), "what": names.action(action)}
            for key, action in sorted(view.pending.items())
        ],
    }


def _device(history: History, device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "where": history.names.gpu(device.name),
        "state": device.state,
        "since": device.since,
        "incident": device.cause,
    }


def _job(history: History, job: Job) -> dict[str, Any]:
    return {
        "job": job.spec.job,
        "state": job.state,
        "since": job.since,
        "attempt": job.attempt,
        "step": max(job.best, job.reached, 0),
        "restarts": max(job.attempt - 1, 0),
        "why": history.names.plain(job.why),
    }


def _cell(key: str, value: object) -> str:
    if key in {"since", "last", "until"}:
        return moment(value) if isinstance(value, float) else "-"
    return "-" if value in {"", None} else str(value)
