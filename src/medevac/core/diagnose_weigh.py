"""What a line is worth beside the others: the traps of job logs, each as one small rule on the clues.

A rule drops a clue, or takes its cause away so that it remains as a symptom. One rule adds a cause: time-outs of the
same group in different collectives contradict each other, which no single line shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from medevac.core.diagnose_case import Case, Clue

Clues: TypeAlias = tuple[Clue, ...]

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
ENDS = frozenset({"elastic-restart", "in-job-restart", "child-failed", "srun-exit", "slurm-cancelled"})
"""Lines that end an attempt, or the worker group of one."""
MEMORY_FAULTS = frozenset(
    {"cuda-ecc", "xid-hardware", "row-remap-failed", "kernel-memory-fault", "megatron-persistent"}
)


def refine(case: Case) -> Clues:
    """The clues that count, in the order of the case."""
    clues = case.clues
    for rule in RULES:
        clues = rule(clues, case)
    return clues


def before_a_restart_that_held(clues: Clues, case: Case) -> Clues:
    """What the job survived was no failure of it: a restart inside the job (torchrun, NVRx, torchft), or an earlier
    attempt in the same log, after which it made progress.
    """
    since = {seen.file: seen.since for seen in case.progress}
    last: dict[str, int] = {}
    for clue in clues:
        for line in (clue.line, clue.last) if clue.signature in ENDS else ():
            if line < since.get(clue.file, 0):
                last[clue.file] = max(last.get(clue.file, 0), line)
    return tuple(clue for clue in clues if clue.last > last.get(clue.file, 0) or clue.file not in last)


def one_root_per_line(clues: Clues, _case: Case) -> Clues:
    """Of several signatures on one line the most telling counts: a line must not argue with itself. What the others
    know of the part stays.
    """
    best: dict[tuple[str, int], Clue] = {}
    for clue in clues:
        where = (clue.file, clue.line)
        if clue.cause is not None and clue.line and (where not in best or clue.weight > best[where].weight):
            best[where] = clue
    kept = []
    for clue in clues:
        chosen = best.get((clue.file, clue.line), clue)
        if clue.cause is None or chosen is clue:
            kept.append(clue)
    return tuple(_with_part(clue, [c for c in clues if c.line == clue.line and c.file == clue.file]) for clue in kept)


def enough_memory_was_free(clues: Clues, _case: Case) -> Clues:
    """Out of memory while far more was free than asked for is no lack of memory."""
    odd = {(clue.file, clue.line) for clue in clues if clue.signature == "cuda-oom" and _had_enough(clue)}
    return _without_cause(clues, lambda c: c.cause == "out-of-memory" and bool(odd))


def more_workers_than_the_world(clues: Clues, _case: Case) -> Clues:
    """A store barrier that counts more workers than there are has stale keys; fewer only says that some are missing."""
    return _without_cause(
        clues,
        lambda c: c.signature == "store-stale-keys" and int(c.fields["workers"]) <= int(c.fields["world"]),
    )


def different_collectives(clues: Clues, _case: Case) -> Clues:
    """Ranks that timed out at the same place of one group, yet in different operations, ran different code."""
    operations: dict[tuple[str, str], set[str]] = {}
    for clue in clues:
        if clue.signature == "nccl-watchdog":
            operations.setdefault(_place(clue), set()).add(clue.fields.get("op", ""))
    torn = {place for place, found in operations.items() if len(found) > 1}
    return tuple(
        msgspec.structs.replace(clue, role="root", cause="user-code", weight=74)
        if clue.signature == "nccl-watchdog" and _place(clue) in torn
        else clue
        for clue in clues
    )


def a_spike_needs_a_quiet_log(clues: Clues, _case: Case) -> Clues:
    """A loss spike is the story only where nothing else is: jobs die for other reasons while their loss is high."""
    if all(c.signature == "loss-jumped" or c.cause == "numerical" or c.symptom == "slow" for c in clues):
        return clues
    return _without_cause(clues, lambda c: c.signature == "loss-jumped")


def errors_of_survivors(clues: Clues, _case: Case) -> Clues:
    """A plain Python error beside lost peers or a hang may be what the survivors stumbled over on their way out."""
    lost = any(c.role == "cascade" and c.names == "peer" for c in clues) or any(
        c.role == "symptom" and c.symptom == "hang" for c in clues
    )
    if not lost:
        return clues
    return _without_cause(clues, lambda c: c.cause == "user-code" and c.weight <= 66)


def numbers_beside_memory_faults(clues: Clues, _case: Case) -> Clues:
    """NaN on GPUs that had memory errors is not blamed on the numerics."""
    if not any(c.signature in MEMORY_FAULTS or c.fields.get("family") == "memory" for c in clues):
        return clues
    return _without_cause(clues, lambda c: c.cause == "numerical")


def a_bug_has_no_hardware(clues: Clues, _case: Case) -> Clues:
    """An error in the script's own words next to a sick device: the device is worth a look first, the words remain."""
    if not any(c.cause == "hardware" and c.weight >= 84 for c in clues):
        return clues
    return _without_cause(clues, lambda c: c.cause in ("user-code", "network", "out-of-memory", "system-software"))


RULES: tuple[Callable[[Clues, Case], Clues], ...] = (
    before_a_restart_that_held,
    one_root_per_line,
    enough_memory_was_free,
    more_workers_than_the_world,
    different_collectives,
    a_spike_needs_a_quiet_log,
    errors_of_survivors,
    numbers_beside_memory_faults,
    a_bug_has_no_hardware,
)


def _with_part(clue: Clue, same_line: list[Clue]) -> Clue:
    """The clue with node, rank and device as any signature of its line read them."""
    if clue.cause is None or not clue.line:
        return clue
    return msgspec.structs.replace(
        clue,
        node=clue.node or next((other.node for other in same_line if other.node), ""),
        pci=clue.pci or next((other.pci for other in same_line if other.pci), ""),
        rank=clue.rank if clue.rank is not None else next((c.rank for c in same_line if c.rank is not None), None),
    )


def _had_enough(clue: Clue) -> bool:
    """Free is over four times the request, and over 1 GiB: fragmentation alone does not explain that."""
    tried, free = _size(clue.fields.get("tried")), _size(clue.fields.get("free"))
    return tried is not None and free is not None and free > max(4 * tried, 2**30)


def _place(clue: Clue) -> tuple[str, str]:
    """Group and sequence number of a timed-out collective, as far as the line says them."""
    return clue.fields.get("pg", ""), clue.fields.get("seq", "")


def _size(text: str | None) -> float | None:
    """`1.25 GiB` in bytes."""
    if not text:
        return None
    number = text.rstrip("iBKMGT ")
    unit = text[len(number) :].strip()[:1]
    try:
        return float(number) * UNITS[unit]
    except (ValueError, KeyError):
        return None


def _without_cause(clues: Iterable[Clue], which: Callable[[Clue], bool]) -> Clues:
    return tuple(
        msgspec.structs.replace(clue, cause=None, weight=0, role="symptom") if which(clue) else clue for clue in clues
    )
