"""What the reading commands share: the log of a state folder, and how each action of it came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from medevac.adapters.store.jsonl import load
from medevac.cli.output import CommandError
from medevac.controller.settings import STORE, state_folder
from medevac.controller.step import refold
from medevac.core.actions import AnyAction
from medevac.core.decision import Decision
from medevac.core.events import ActionSettled
from medevac.core.view import View
from medevac.ports.store import EventRecord, Record
from medevac.report.words import Names

Outcome: TypeAlias = Literal["done", "refused", "no-room", "unsupported", "unknown", "pending"]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """How an action came out. `pending`: not read back yet."""

    action: AnyAction
    decision: Decision
    outcome: Outcome = "pending"
    at: float | None = None
    why: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A log, read to its end. `actions` by id; an action ordered anew under its old id has its last outcome."""

    path: Path
    records: tuple[Record, ...]
    view: View
    events: dict[int, EventRecord]
    decisions: dict[str, Decision]
    actions: dict[str, Settled]
    names: Names


def read(state_dir: Path | None) -> History:
    """The log of a state folder, or of a file of one. Raises `CommandError`, `ConfigError`."""
    place = state_folder(state_dir)
    path = place / STORE if os.path.isdir(place) else place  # noqa: PTH112 - another user's folder is no error here
    if not os.access(path, os.F_OK):
        raise CommandError(f"{path}: there is no such store; name the state folder with --state-dir")
    return fold(path, load(path))


def fold(path: Path, records: list[Record]) -> History:
    """All that a log says."""
    view, events, decisions = View(), {}, {}
    actions: dict[str, Settled] = {}
    for after, record, decision in refold(view, records):
        view = after
        events[record.seq] = record
        event = record.event
        if isinstance(event, ActionSettled) and event.action in actions:
            actions[event.action] = msgspec.structs.replace(
                actions[event.action], outcome=event.outcome, at=event.at, why=event.why
            )
        if decision is not None:
            decisions[decision.id] = decision
            actions |= {action.id: Settled(action=action, decision=decision) for action in decision.actions}
    return History(
        path=path,
        records=tuple(records),
        view=view,
        events=events,
        decisions=decisions,
        actions=actions,
        names=Names(view),
    )


def reason(history: History, decision: Decision) -> str:
    """The decision's reason for a person; one that only judges checkpoints has none of its own."""
    return history.names.plain(decision.reason) or "verdicts on checkpoints"


def kind(action: AnyAction) -> str:
    """The name of an action's kind."""
    return type(action).__name__
