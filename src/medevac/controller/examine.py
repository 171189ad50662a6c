"""An attempt that makes no progress, looked at: which rank's process is stopped, stuck in the kernel or gives no sign
of life, what the NCCL flight recorders say, at what the ranks are, and how busy their GPUs. Only reading, for a short
time, and nothing seen is no error.
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
from medevac.adapters.stacks import read_stacks
from medevac.core.actions import ExamineAttempt
from medevac.core.diagnose_case import Clue
from medevac.core.events import AttemptExamined, RankPlace
from medevac.core.flight_recorder import analyse
from medevac.core.progress import SUSPENDED
from medevac.core.stacks import Load, of_loads, of_stacks
from medevac.decode.fr_dump_files import read_dumps, stall_clues

LONGEST_S = 3.0
"""The stop of a hung attempt waits no longer for this."""
LOOKS, PAUSE_S = 3, 0.15
"""A process is stuck in the kernel when each of so many looks finds it there."""
PATTERN = b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE="
USUAL = "/tmp/nccl_trace_rank_"  # noqa: S108 - where PyTorch writes to without the variable
MOST_CLUES = 32
log = structlog.get_logger(__name__)


async def examine(
    look: ExamineAttempt,
    attempt: Attempt,
    dumps: str | None,
    now: float,
    loads: Mapping[str, tuple[Load, ...]] | None = None,
) -> tuple[AttemptExamined, ...]:
    """A local attempt; `dumps` is the folder or file prefix of its flight recorders, None: as PyTorch was told; `loads`
    what the last readings say of each GPU, by UUID.
    """
    return await _soon(look, now, lambda: _local(look, attempt, dumps, loads or {}))


async def examine_files(
    look: ExamineAttempt,
    dumps: str | None,
    checkpoints: str | None,
    places: Iterable[RankPlace],
    started: float,
    now: float,
    *,
    suspended: bool = False,
) -> tuple[AttemptExamined, ...]:
    """An attempt elsewhere, of which only files on a shared file system are seen: its flight recorders' dumps, and
    the heartbeat files that its ranks keep in the checkpoint folder since it `started`. `suspended`: by its scheduler.
    """
    if suspended:
        clue = Clue(
            signature=SUSPENDED, role="symptom", symptom="none", names="none", text="the scheduler suspended it"
        )
        return await _soon(look, now, lambda: [clue])

    def seen() -> list[Clue]:
        nodes = {place.rank: place.node for place in places}
        beats = silent_ranks(Path(checkpoints) / ".medevac", look.silent_s, started, nodes) if checkpoints else []
        return [*beats, *(_recorded(dumps, look.since, nodes) if dumps else ())]

    return await _soon(look, now, seen) if dumps or checkpoints else ()


async def _soon(look: ExamineAttempt, now: float, seen: Callable[[], list[Clue]]) -> tuple[AttemptExamined, ...]:
    try:
        clues = await asyncio.wait_for(asyncio.to_thread(seen), LONGEST_S)
    except (TimeoutError, OSError) as problem:
        why = str(problem) or "late"
        log.warning("a silent attempt could not be examined", job=look.job, attempt=look.attempt, problem=why)
        return ()
    if not clues:
        return ()
    found, name = tuple(clues[:MOST_CLUES]), f"{look.id}/examined"
    return (AttemptExamined(at=now, id=name, source="examine", job=look.job, attempt=look.attempt, clues=found),)


def silent_ranks(folder: Path, silent_s: float, started: float, nodes: Mapping[int, str]) -> list[Clue]:
    """The ranks whose heartbeat files were not touched for `silent_s` while most others' were: a client touches its
    file each second, whatever its training waits for (docs/in-job-protocol.md). Times are all the file system's.
    """
    touched: dict[int, tuple[float, str]] = {}
    for path in folder.glob("*.jsonl"):
        node, _, rank = path.stem.rpartition(".")
        at = path.stat().st_mtime
        if rank.isdecimal() and at >= started:
            touched[int(rank)] = max(touched.get(int(rank), (0.0, "")), (at, node))
    newest = max((at for at, _ in touched.values()), default=0.0)
    late = {rank: newest - at for rank, (at, _) in touched.items() if newest - at >= silent_s}
    if not 0 < len(late) * 2 <= len(touched):
        return []
    return [
        _clue(
            "process-silent",
            f"rank {rank} gives no sign of life for {late[rank]:.0f} s, while the processes of other ranks do",
            rank,
            nodes.get(rank, touched[rank][1]),
        )
        for rank in sorted(late)
    ]


def _local(
    look: ExamineAttempt, attempt: Attempt, dumps: str | None, loads: Mapping[str, tuple[Load, ...]]
) -> list[Clue]:
    plan = attempt.plan
    if plan is None:
        return []
    ranks = _ranks(attempt, plan)
    nodes = {planned.place.rank: planned.place.node for planned in plan.ranks}
    prefix = dumps or _prefix(ranks.values())
    clues = [*_states(ranks, nodes), *_recorded(prefix, max(plan.at, look.since), nodes)]
    if look.stacks:
        clues += of_stacks(read_stacks({rank: process.pid for rank, process in ranks.items()}), nodes)
    places = (planned.place for planned in plan.ranks)
    by_rank = {place.rank: tuple(one for gpu in place.gpus for one in loads.get(gpu, ())) for place in places}
    return [*clues, *of_loads(by_rank, nodes)]


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
        if seen and seen[-1].state == "T":
            yield _clue("process-stopped", f"{who} is stopped (state T)", rank, node)
        elif seen and seen[-1].state == "t":
            yield _clue("process-traced", f"{who} is held by a debugger (state t)", rank, node)
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
