"""A person's orders: written into the log, where the controller finds them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Literal

from medevac.adapters.lease import is_over, read
from medevac.adapters.store.sqlite import SqliteStore
from medevac.cli.output import CommandError, say_error
from medevac.controller.settings import LEASE, STORE, Run, state_folder
from medevac.controller.supervise import user
from medevac.core.events import ClusterSeen, JobSubmitted, OrderGiven
from medevac.ports.store import EventRecord

What = Literal["pause", "resume", "return", "release", "resume-from", "stop"]


def give_back(target: str, *, why: str = "", state_dir: Path | None = None) -> int:
    """Give a GPU (by UUID) or a node (by name) that Medevac took out back to service.

    Args:
        target: The GPU's UUID or the node's name.
        why: Stands in the audit.
        state_dir: The state folder.
    """
    return _order(state_dir, ("return",), target, why)


def release(job: str, *, resume_from: int | None = None, why: str = "", state_dir: Path | None = None) -> int:
    """Let a job go on that waits for a person, or that was given up.

    Args:
        job: The job's name.
        resume_from: Resume from this step, whatever is thought of it: your word stands in the audit.
        why: Stands in the audit.
        state_dir: The state folder.
    """
    orders: tuple[What, ...] = ("release",) if resume_from is None else ("resume-from", "release")
    return _order(state_dir, orders, job, why, step=resume_from)


def pause(*, why: str = "", state_dir: Path | None = None) -> int:
    """Decide and record, but touch nothing until `medevac resume`.

    Args:
        why: Stands in the audit.
        state_dir: The state folder.
    """
    return _order(state_dir, ("pause",), "", why)


def resume(*, why: str = "", state_dir: Path | None = None) -> int:
    """End a pause.

    Args:
        why: Stands in the audit.
        state_dir: The state folder.
    """
    return _order(state_dir, ("resume",), "", why)


def stop(job: str, *, why: str = "", state_dir: Path | None = None) -> int:
    """Stop a job: its processes are asked to leave, then killed.

    Args:
        job: The job's name.
        why: Stands in the audit.
        state_dir: The state folder.
    """
    return _order(state_dir, ("stop",), job, why)


def _order(given: Path | None, orders: tuple[What, ...], target: str, why: str, step: int | None = None) -> int:
    state = state_folder(given)
    asyncio.run(_write(state, orders, target, why, step))
    held = read(state / LEASE)
    if is_over(held, time.time()):
        attach = f"medevac run --attach {target}" if Run(state, target or "-").known else "the next medevac run"
        say_error(f"written down; no controller acts in {state} now: {attach} does it")
    return 0


async def _write(state: Path, orders: tuple[What, ...], target: str, why: str, step: int | None) -> None:
    store = SqliteStore.open(state / STORE, create=False)
    try:
        await _check(store, orders[-1], target)
        who, now = user(), time.time()
        for what in orders:
            chosen = step if what == "resume-from" else None
            order = OrderGiven(at=now, seen_at=now, what=what, who=who, target=target, why=why, step=chosen)
            await store.append_events((order,))
    finally:
        await store.close()


async def _check(store: SqliteStore, what: What, target: str) -> None:
    """An order about something that the log does not know is a slip of the pen."""
    if what in {"pause", "resume"}:
        return
    known: set[str] = set()
    last = 0
    while records := await store.records(after=last):
        last = records[-1].seq
        for record in records:
            if not isinstance(record, EventRecord):
                continue
            if isinstance(record.event, JobSubmitted) and what != "return":
                known.add(record.event.job)
            if isinstance(record.event, ClusterSeen) and what == "return":
                known |= {node.name for node in record.event.nodes}
                known |= {gpu.uuid for node in record.event.nodes for gpu in node.gpus}
    if target not in known:
        kind = "GPU or node" if what == "return" else "job"
        raise CommandError(f"{target or repr(target)}: no such {kind}; there are {', '.join(sorted(known)) or 'none'}")
