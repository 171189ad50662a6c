"""How attempts end when their keeper does not see to it: stopped on order, found lost, and what savers keep."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from medevac.adapters.schedulers.local import processes, shm
from medevac.adapters.schedulers.local.family import Family, end, savers
from medevac.adapters.schedulers.local.files import Attempt, Ended, Keeping, Plan, Stop, attempts
from medevac.core.actions import StopAttempt
from medevac.core.events import AttemptEnded, RankExit
from medevac.ports.errors import OutcomeUnknown

LEFT_IN_ORDER = {0, 83}
"""Exit codes that are no failure: done, and drained after a checkpoint."""

_KEEPER_SECONDS = 5.0
"""How long a keeper may take to write down the end of ranks that are dead, before we do it in its place."""


def stop(attempt: Attempt, action: StopAttempt) -> AttemptEnded | None:
    """End the attempt and return how it ended. All work is done from here: the keeper may be stopped itself.

    Raises `OutcomeUnknown` when something of it survives SIGKILL.
    """
    plan = attempt.plan
    if plan is None:
        return None
    if not attempt.ended and not attempt.stop:
        attempt.save(Stop(action=action.id, at=time.time()))
    grace_s, since = action.grace_s, time.monotonic()
    # More than once where the keeper was just about to start its ranks.
    while not attempt.ended:
        end(Family(attempt, plan), grace_s=grace_s)
        grace_s = 0.0
        _close(attempt, plan)
        _hurry(attempt, time.monotonic() - since - action.grace_s)
        time.sleep(0.01)
    return attempt.ended_event()


def close_lost(attempt: Attempt) -> None:
    """Write the end of an attempt whose keeper is gone without a word, after killing what it left."""
    keeping = attempt.keeping
    if keeping is None or attempt.ended or processes.alive(keeping.process):
        return
    if plan := attempt.plan:
        _close(attempt, plan)


def _close(attempt: Attempt, plan: Plan) -> None:
    """Write the end if nobody else can: whoever has the lock knows that no keeper is left."""
    with attempt.lock(wait=False) as held:
        if held and not attempt.ended:
            end(Family(attempt, plan))
            settle(attempt, plan, attempt.keeping, attempt.exits, why="keeper-lost")


def _hurry(attempt: Attempt, waited_s: float) -> None:
    """A keeper writes down the end of its dead ranks at once, unless it is stopped or stuck."""
    keeping = attempt.keeping
    keeper = processes.alive(keeping.process) if keeping else None
    if keeper and keeper.stopped:
        processes.send(keeper, signal.SIGCONT)
    if waited_s > _KEEPER_SECONDS and keeper:
        processes.send(keeper, signal.SIGKILL)
    if waited_s > 4 * _KEEPER_SECONDS:
        raise OutcomeUnknown(f"{attempt.folder}: its keeper neither ends nor answers")


def settle(attempt: Attempt, plan: Plan, keeping: Keeping | None, exits: tuple[RankExit, ...], why: str = "") -> None:
    """Clear shared memory and write the end, once: for whoever has the attempt's lock, its processes being dead."""
    if attempt.ended:
        return
    if keeping:
        shm.sweep(Path(plan.shm), keeping.shm)
    stop, failures = attempt.stop, [exit_ for exit_ in exits if exit_.code not in LEFT_IN_ORDER]
    if stop and (not failures or stop.at <= failures[0].at):
        why = "stopped"
    attempt.save(Ended(at=time.time(), code=_code(exits, why), exits=exits, why=why))


def _code(exits: tuple[RankExit, ...], why: str) -> int:
    """The first failure's code; 83 if somebody drained; 137 where nobody is left to tell."""
    if not exits or why == "keeper-lost":
        return 137
    codes = [exit_.code for exit_ in exits]
    return next((code for code in codes if code not in LEFT_IN_ORDER), max(codes))


def clear_savers(job_folder: Path, segments: Path) -> None:
    """End the savers of a job, a keeper that stayed for an attempt that does not come, and what they have kept."""
    for attempt in attempts(job_folder)[-1:]:
        keeping = attempt.keeping
        if attempt.ended and keeping and keeping.warm and (keeper := processes.alive(keeping.process)):
            processes.send(keeper, signal.SIGKILL)
    for pid in savers(job_folder):
        if process := processes.look(pid):
            processes.send(process, signal.SIGKILL)
    for path in (*segments.glob(f"medevac-{job_folder.name}-*"), *(job_folder / "savers").glob("[0-9]*")):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
