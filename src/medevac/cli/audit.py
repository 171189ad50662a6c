"""`medevac audit`: every decision and action with its outcome, in order."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from medevac.cli.exits import Exit
from medevac.cli.history import History, Settled, kind, read, reason
from medevac.cli.output import CommandError, moment, print_json
from medevac.core.decision import Decision

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def audit(
    *,
    state_dir: Path | None = None,
    since: str | None = None,
    job: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """List every decision and action with how it came out, oldest first.

    Parameters
    ----------
    state_dir
        The state folder, or the file of a store.
    since
        Only from then on: 2026-03-01T10:00, unix seconds, or so long ago (90s, 15m, 6h, 2d).
    job
        Only what concerns this job.
    json
        Print one JSON object a line.
    """
    history = read(state_dir)
    if job is not None and job not in history.view.jobs:
        known = ", ".join(sorted(history.view.jobs)) or "none"
        raise CommandError(f"--job {job or repr(job)}: the log has no such job; it has {known}")
    start = moment_of(since) if since else 0.0
    for decision in history.decisions.values():
        if decision.at >= start and (job is None or concerns(decision, job)):
            told = as_json(history, decision)
            print_json(told) if json else print(_lines(history, decision))
    return Exit.DONE


def moment_of(text: str, option: str = "--since") -> float:
    """Unix seconds of what a person wrote. Raises `CommandError`."""
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return time.time() - float(ago[1]) * UNITS[ago[2]]
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as problem:
        raise CommandError(f"{option} {text}: write 2026-03-01T10:00, unix seconds, or 15m, 6h, 2d") from problem
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def concerns(decision: Decision, job: str) -> bool:
    """Whether a decision moves the job or does something for it."""
    moved = any(m.trigger.machine == "job" and m.trigger.who == job for m in decision.moved)
    actions = (*decision.actions, *(held.action for held in decision.held))
    return moved or any(getattr(action, "job", "") == job for action in actions)


def as_json(history: History, decision: Decision) -> dict[str, Any]:
    """A decision as recorded, with `event` in full and each action's `outcome`, `settled_at` and `outcome_why`."""
    told: dict[str, Any] = msgspec.to_builtins(decision)
    record = history.events.get(decision.cause)
    told["event"] = msgspec.to_builtins(record.event) if record else None
    told["actions"] = [_outcome(history.actions[action.id]) for action in decision.actions]
    return told


def _outcome(settled: Settled) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(settled.action)
    return {**told, "outcome": settled.outcome, "settled_at": settled.at, "outcome_why": settled.why}


def _lines(history: History, decision: Decision) -> str:
    lines = [f"{moment(decision.at)}  {decision.id}  {reason(history, decision)}"]
    lines += [f"    {line}" for line in action_lines(history, decision)]
    return "\n".join(lines)


def action_lines(history: History, decision: Decision) -> list[str]:
    """Each action with its outcome, then what was held back."""
    names = history.names
    done = [history.actions[action.id] for action in decision.actions]
    lines = [f"{one.outcome:8} {kind(one.action)}: {names.action(one.action)}{_why(one)}" for one in done]
    held = (f"{kind(h.action)}: {names.action(h.action)} ({h.guard}: {names.plain(h.why)})" for h in decision.held)
    return lines + [f"held     {one}" for one in held]


def _why(settled: Settled) -> str:
    after = "" if settled.at is None else f" after {max(settled.at - settled.decision.at, 0):.1f} s"
    return after + (f" ({settled.why})" if settled.why else "")
