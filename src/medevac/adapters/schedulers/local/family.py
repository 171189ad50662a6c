"""All that belongs to one attempt, and how to end it: groups, orphans that left them, shared memory left behind.

A process belongs to an attempt when it is a rank, is in a rank's process group, descends from one, or carries the
attempt in its environment. A registered saver and its children do not (they outlive an attempt on purpose), nor does a
living keeper's warm process, nor do those who do the ending.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from medevac.adapters.schedulers.local import processes
from medevac.adapters.schedulers.local.files import Attempt, Keeping, Plan
from medevac.adapters.schedulers.local.processes import Process
from medevac.ports.errors import OutcomeUnknown

KILL_SECONDS = 20.0
"""How long SIGKILL may take: a process in an uninterruptible read of a dead disk or GPU may never die."""


class Family:
    """The processes of one attempt, looked up anew each time."""

    def __init__(self, attempt: Attempt, plan: Plan) -> None:
        self._attempt = attempt
        self._plan = plan
        # The state folder too: job names of different folders are different jobs.
        marks = {"MEDEVAC_STATE_DIR": plan.state, "MEDEVAC_JOB_ID": plan.job, "MEDEVAC_ATTEMPT": plan.attempt}
        self._marks = {os.fsencode(f"{name}={value}") for name, value in marks.items()}

    def members(self) -> list[Process]:
        """Those alive now, stopped ones too."""
        table = processes.everyone()
        keeping = self._attempt.keeping
        chosen = {process.pid for process in table.values() if self._is_marked(process.pid)}
        chosen |= self._of_ranks(keeping, table)
        if keeping and (keeper := processes.alive(keeping.process)):
            chosen |= processes.descendants({keeper.pid}, table) - {keeper.pid}
        chosen = processes.descendants(chosen, table) - self._spared(table)
        return [table[pid] for pid in sorted(chosen) if not table[pid].gone]

    def ranks(self) -> list[Process]:
        """The ranks' own processes that are alive."""
        keeping = self._attempt.keeping
        found = [processes.alive(rank.process) for rank in keeping.ranks] if keeping else []
        return [process for process in found if process]

    def _is_marked(self, pid: int) -> bool:
        return processes.environment(pid) >= self._marks

    def _of_ranks(self, keeping: Keeping | None, table: dict[int, Process]) -> set[int]:
        if keeping is None or keeping.process.boot != processes.boot():
            return set()
        leaders = {rank.process.pid: rank.process.started for rank in keeping.ranks}
        mine = {pid for pid, started in leaders.items() if pid in table and table[pid].started == started}
        # The session is the keeper's own: a group whose number was given away since is in another.
        return mine | {p.pid for p in table.values() if p.group in leaders and p.session == keeping.process.pid}

    def _spared(self, table: dict[int, Process]) -> set[int]:
        keeping = self._attempt.keeping
        keeper: set[int] = set()
        spared = savers(self._attempt.folder.parent.parent)
        if keeping and processes.alive(keeping.process):
            keeper = {keeping.process.pid}
            spared |= {keeping.warm.pid} if keeping.warm and processes.alive(keeping.warm) else set()
        return processes.descendants(spared, table) | keeper | _ourselves(table)


def _ourselves(table: dict[int, Process]) -> set[int]:
    return processes.ancestors(os.getpid(), table)


def savers(job_folder: Path) -> set[int]:
    """Living checkpoint savers of a job. A file named by pid may hold the start time in ticks, to outlast pid reuse."""
    found = set()
    for path in (job_folder / "savers").glob("[0-9]*"):
        process = processes.look(int(path.name)) if path.name.isdecimal() else None
        if process and path.read_text().strip() in {"", str(process.started)}:
            found.add(process.pid)
    return found


def end(family: Family, *, grace_s: float = 0.0) -> None:
    """End all members: SIGTERM to the ranks' groups and up to `grace_s` to leave, then SIGKILL. Stopped ones get none.

    Raises `OutcomeUnknown` naming who survives SIGKILL.
    """
    if grace_s > 0:
        _ask(family, grace_s)
    deadline, pause = time.monotonic() + KILL_SECONDS, 0.005
    while left := family.members():
        _signal(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.pid} (state {process.state})" for process in left)
            raise OutcomeUnknown(f"SIGKILL sent, still there: process {names}")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _ask(family: Family, grace_s: float) -> None:
    groups = {process.pid for process in family.ranks()}
    _signal((process for process in family.members() if process.group in groups), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(not process.stopped for process in family.members()):
        time.sleep(0.05)


def _signal(whom: Iterable[Process], number: signal.Signals) -> None:
    for process in whom:
        processes.send(process, number)
