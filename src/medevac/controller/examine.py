"""An attempt that hangs, looked at before it is stopped: which rank's process is stopped or stuck in the kernel, and
what the NCCL flight recorders say. Only reading, for a short time, and nothing seen is no error.
"""

from __future__ import annotations

import asyncio
import glob
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import structlog
from msgspec.structs import replace

from medevac.adapters.schedulers.local import processes
from medevac.adapters.schedulers.local.family import Family
from medevac.adapters.schedulers.local.files import Attempt, Plan
from medevac.adapters.schedulers.local.processes import Process
from medevac.core.diagnose_case import Clue
from medevac.core.events import AttemptExamined
from medevac.core.flight_recorder import analyse
from medevac.decode.fr_dump_files import read_dumps, stall_clues

LONGEST_S = 3.0
"""The stop of a hung attempt waits no longer for this."""
LOOKS, PAUSE_S = 3, 0.15
"""A process is stuck in the kernel when each of so many looks finds it there."""
PATTERN = b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE="
USUAL = "/tmp/nccl_trace_rank_"  # noqa: S108 - where PyTorch writes to without the variable
MOST_CLUES = 32
log = structlog.get_logger(__name__)


async def examine(attempt: Attempt, dumps: str | None, now: float) -> tuple[AttemptExamined, ...]:
    """A local attempt; `dumps` is the folder or file prefix of its flight recorders, None: as PyTorch was told."""
    return await _soon(attempt.job, attempt.number, now, lambda: _local(attempt, dumps))


async def examine_dumps(job: str, attempt: int, dumps: str | None, now: float) -> tuple[AttemptExamined, ...]:
    """An attempt elsewhere, of which only its dumps on a shared file system are seen."""
    return await _soon(job, attempt, now, lambda: list(_recorded(dumps, 0.0, {}))) if dumps else ()


async def _soon(job: str, attempt: int, now: float, look: Callable[[], list[Clue]]) -> tuple[AttemptExamined, ...]:
    try:
        clues = await asyncio.wait_for(asyncio.to_thread(look), LONGEST_S)
    except (TimeoutError, OSError) as problem:
        log.warning("a hung attempt could not be examined", job=job, attempt=attempt, problem=str(problem) or "late")
        return ()
    if not clues:
        return ()
    found = tuple(clues[:MOST_CLUES])
    name = f"{job}/{attempt}/examined"
    return (AttemptExamined(at=now, id=name, source="examine", job=job, attempt=attempt, clues=found),)


def _local(attempt: Attempt, dumps: str | None) -> list[Clue]:
    plan = attempt.plan
    if plan is None:
        return []
    ranks = _ranks(attempt, plan)
    nodes = {planned.place.rank: planned.place.node for planned in plan.ranks}
    prefix = dumps or _prefix(ranks.values())
    return [*_states(ranks, nodes), *_recorded(prefix, plan.at, nodes)]


def _ranks(attempt: Attempt, plan: Plan) -> dict[int, Process]:
    """Each rank's own process: those of the keeper, or, under a launcher, the topmost with that RANK."""
    family = Family(attempt, plan)
    keeping = attempt.keeping
    if keeping and len(keeping.ranks) > 1:
        found = {one.rank: processes.alive(one.process) for one in keeping.ranks}
        return {rank: process for rank, process in found.items() if process}
    members = {process.pid: process for process in family.members()}
    told = {pid: rank for pid in members if (rank := _rank(pid)) is not None}
    own = {rank: pid for pid, rank in sorted(told.items(), reverse=True) if told.get(members[pid].parent) != rank}
    return {rank: members[pid] for rank, pid in own.items()} or dict(enumerate(family.ranks()))


def _rank(pid: int) -> int | None:
    value = next((one[5:] for one in processes.environment(pid) if one.startswith(b"RANK=")), b"")
    return int(value) if value.isdigit() else None


def _states(ranks: Mapping[int, Process], nodes: Mapping[int, str]) -> Iterator[Clue]:
    """The ranks that a signal or a debugger holds, and those that wait in the kernel all the time."""
    looks = []
    for _ in range(LOOKS):
        looks.append({rank: processes.look(process.pid) for rank, process in ranks.items()})
        time.sleep(PAUSE_S)
    for rank in sorted(ranks):
        seen = [process for look in looks if (process := look[rank])]
        node = nodes.get(rank, next(iter(nodes.values()), ""))
        who = f"rank {rank} (process {ranks[rank].pid} on {node})"
        if seen and seen[-1].stopped:
            yield _clue("process-stopped", f"{who} is stopped (state {seen[-1].state})", rank, node)
        elif seen and all(process.state == "D" for process in seen):
            yield _clue("process-blocked", f"{who} waits in the kernel (state D)", rank, node)


def _clue(signature: str, text: str, rank: int, node: str) -> Clue:
    return Clue(signature=signature, role="symptom", symptom="hang", text=text, rank=rank, node=node)


def _prefix(ranks: Iterable[Process]) -> str:
    """Where the ranks write their dumps to."""
    told = (one for process in ranks for one in processes.environment(process.pid) if one.startswith(PATTERN))
    return os.fsdecode(next(told, PATTERN + USUAL.encode())[len(PATTERN) :])


def _recorded(where: str, since: float, nodes: Mapping[int, str]) -> Iterator[Clue]:
    """What the dumps written since then say; `where` is a folder, or what their names begin with."""
    pattern = f"{glob.escape(where)}/*" if Path(where).is_dir() else f"{glob.escape(where)}*"
    paths = [path for path in map(Path, sorted(glob.glob(pattern))) if path.is_file() and path.stat().st_mtime >= since]  # noqa: PTH207 - a prefix, not a folder
    traces = read_dumps(paths).traces
    for clue in stall_clues(where, analyse(traces)) if traces else ():
        yield replace(clue, node=nodes.get(clue.rank, "") if clue.rank is not None else "")
