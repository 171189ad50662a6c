"""Who is likely at fault: from the lines that name the cause, else from who is missing among those that wait."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from medevac.core.diagnose_case import Case, Clue, Suspect

MOST = 8
"""More suspects than this is a list of the job's parts, not of suspects."""

WAITED_FOR = {
    "flight-recorder-behind": "did not come to the collective in which the others wait (flight recorder)",
    "flight-recorder-missing-dump": "gave no flight-recorder dump while the others wait",
    "flight-recorder-not-started": "enqueued the collective but its device did not start it (flight recorder)",
    "process-stopped": "its process is stopped by a signal",
    "process-silent": "its process gives no sign of life while others do",
    "process-traced": "a debugger holds its process",
    "process-blocked": "its process waits in the kernel and cannot be interrupted",
    "monitored-barrier": "the others waited for it in a barrier",
    "jax-heartbeat": "its heartbeat stopped",
    "stack-outside": "is elsewhere in the program while most wait at one place (stacks)",
    "stack-loader": "waits for its data while most wait at one place (stacks)",
    "gpu-idle": "its GPU is idle while those of most are busy",
    "reports-behind": "reported a lower step than the others",
    "cuda-oom": "ran out of memory while enough was free",
}
OF_THE_PROGRAM = frozenset({"user-code", "preemption", "numerical"})
"""Causes that no part is at fault for, unless one rank alone shows them."""

EXITS = frozenset({"srun-exit", "k8s-node"})
NEAR = 8
"""Lines of one entry in the launcher's summary of failures."""


def suspects(clues: tuple[Clue, ...], root: tuple[Clue, ...], case: Case) -> tuple[Suspect, ...]:
    """The suspects, likeliest first. `root` is empty where no cause was found."""
    if root:
        return _of_root(clues, root, case)
    return (
        _waited_for(clues) or _ended_first(clues) or _killed_first(clues) or _agreed_peer(clues) or _absent(clues, case)
    )


def _of_root(clues: tuple[Clue, ...], root: tuple[Clue, ...], case: Case) -> tuple[Suspect, ...]:
    """Those that the strongest lines are about. An error that all ranks print has no rank at fault, and a rank that
    complains of a peer is only a witness.
    """
    telling = [clue for clue in root if clue.role == "root" and clue.weight >= root[0].weight - 10]
    if root[0].cause in OF_THE_PROGRAM:
        telling = [clue for clue in telling if clue.node or clue.rank is not None] if case.ranks != {0} else []
    own = [clue for clue in telling if clue.names not in ("none", "peer")]
    found = dict.fromkeys(_placed(_suspect(clue), clues) for clue in own)
    known = tuple(one for one in _at_home(found, telling) if one.rank is not None or one.node or one.gpu)
    everyone = len(case.ranks) > 1 and {one.rank for one in known} >= case.ranks
    if everyone or len(known) > MOST:
        known = ()
    if known or root[0].cause in OF_THE_PROGRAM:
        return known
    return _agreed_peer(root) or _one_node(telling, clues)


def _suspect(clue: Clue) -> Suspect:
    rank = None if clue.names == "node" and clue.node else clue.rank
    return Suspect(why=clue.signature, rank=rank, node=clue.node, gpu=_gpu(clue))


def _gpu(clue: Clue) -> str:
    return clue.pci.lower() or ("" if clue.gpu is None else str(clue.gpu))


def _placed(one: Suspect, clues: Iterable[Clue]) -> Suspect:
    """With its node, where another line says on which node that rank ran, or only one node failed."""
    if one.node:
        return one
    if one.rank is not None:
        nodes = {clue.node for clue in clues if clue.rank == one.rank and clue.node}
    else:
        nodes = _failing(clues)
    return replace(one, node=nodes.pop()) if len(nodes) == 1 else one


def _at_home(found: Iterable[Suspect], telling: Iterable[Clue]) -> tuple[Suspect, ...]:
    """A device of which only the kernel speaks is on the one node that all lines of the same cause come from."""
    nodes = {clue.node for clue in telling} - {""}
    home = nodes.pop() if len(nodes) == 1 else ""
    return tuple(replace(one, node=home) if one.gpu and not one.node and one.rank is None else one for one in found)


def _failing(clues: Iterable[Clue]) -> set[str]:
    """The nodes of which the launcher says that they failed."""
    return {clue.node for clue in clues if clue.signature in EXITS and clue.node}


def _one_node(telling: Iterable[Clue], clues: Iterable[Clue]) -> tuple[Suspect, ...]:
    """The node that all telling lines come from, else the one that failed."""
    own = [clue for clue in telling if clue.names != "peer"]
    nodes = {clue.node for clue in own} - {""} or _failing(clues)
    if not own or len(nodes) != 1:
        return ()
    return (Suspect(why=own[0].signature, node=nodes.pop()),)


def _agreed_peer(clues: Iterable[Clue]) -> tuple[Suspect, ...]:
    """The peer that two or more others name and that says nothing itself; one witness alone names no culprit."""
    clues = tuple(clues)
    witnesses: dict[str, set[str]] = {}
    for clue in clues:
        if clue.peer:
            who = clue.node or f"rank {clue.rank}"
            witnesses.setdefault(_host(clue.peer), set()).add(who)
    if len(witnesses) != 1:
        return ()
    ((host, by),) = witnesses.items()
    if len(by) < 2 or host in by:
        return ()
    return (Suspect(why=f"{len(by)} others name it", node=host),)


def _host(peer: str) -> str:
    """`n8<40311>` and `n8:40311` without the port."""
    return peer.partition("<")[0].rsplit(":", 1)[0]


def _waited_for(clues: tuple[Clue, ...]) -> tuple[Suspect, ...]:
    """The ranks that the flight recorders or a monitored barrier miss."""
    missed = [clue for clue in clues if clue.signature in WAITED_FOR and clue.rank is not None]
    return tuple(
        dict.fromkeys(Suspect(why=WAITED_FOR[c.signature], rank=c.rank, node=c.node, gpu=_gpu(c)) for c in missed)
    )


def _ended_first(clues: tuple[Clue, ...]) -> tuple[Suspect, ...]:
    """The rank that the scheduler saw end before all others."""
    return tuple(Suspect(why=c.text, rank=c.rank, node=c.node) for c in clues if c.signature == "ended-first")


def _killed_first(clues: tuple[Clue, ...]) -> tuple[Suspect, ...]:
    """The one rank that a signal ended of which torchrun says that it failed first."""
    killed = [clue for clue in clues if clue.signature == "elastic-killed"]
    if len(killed) != 1 or killed[0].count != 1:
        return ()
    entry = [c for c in clues if c.file == killed[0].file and 0 < killed[0].line - c.line < NEAR]
    ranks = [clue.rank for clue in entry if clue.signature == "elastic-rank"]
    nodes = [clue.node for clue in entry if clue.signature == "elastic-host"]
    if len(ranks) != 1:
        return ()
    return (Suspect(why="a signal ended it first", rank=ranks[0], node=nodes[0] if len(nodes) == 1 else ""),)


def _absent(clues: tuple[Clue, ...], case: Case) -> tuple[Suspect, ...]:
    """The ranks that report no time-out while the others do: they did not come to the collective."""
    waited = {clue.rank for clue in clues if clue.signature == "nccl-watchdog" and clue.rank is not None}
    if not waited:
        return ()
    absent = sorted((case.ranks | set(range(max(waited) + 1))) - waited)
    if not 0 < len(absent) <= max(1, len(waited) // 2):
        return ()
    return tuple(Suspect(why="reports no time-out while the others do", rank=rank) for rank in absent)
