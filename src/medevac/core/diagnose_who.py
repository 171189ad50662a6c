"""Who is likely at fault: from the lines that name the cause, else from who is missing among those that wait."""

from __future__ import annotations

from medevac.core.diagnose_case import Case, Clue, Suspect

MOST = 8
"""More suspects than this is a list of the job's parts, not of suspects."""

WAITED_FOR = {
    "flight-recorder-behind": "did not come to the collective in which the others wait (flight recorder)",
    "flight-recorder-missing-dump": "gave no flight-recorder dump while the others wait",
    "flight-recorder-not-started": "enqueued the collective but its device did not start it (flight recorder)",
    "monitored-barrier": "the others waited for it in a barrier",
}


def suspects(clues: tuple[Clue, ...], root: tuple[Clue, ...], case: Case) -> tuple[Suspect, ...]:
    """The suspects, likeliest first. `root` is empty where no cause was found."""
    if root:
        return _of_root(root, case)
    return _waited_for(clues) or _absent(clues, case)


def _of_root(root: tuple[Clue, ...], case: Case) -> tuple[Suspect, ...]:
    """Those that the strongest lines are about. An error that all ranks print has no rank at fault."""
    telling = [clue for clue in root if clue.role == "root" and clue.weight >= root[0].weight - 10]
    if root[0].cause in ("user-code", "preemption", "numerical"):
        telling = [clue for clue in telling if clue.rank is not None or clue.node]
    found = dict.fromkeys(_suspect(clue) for clue in telling if clue.names != "none")
    known = tuple(one for one in found if one.rank is not None or one.node or one.gpu)
    everyone = len(case.ranks) > 1 and {one.rank for one in known} >= case.ranks
    return () if everyone or len(known) > MOST else known


def _suspect(clue: Clue) -> Suspect:
    gpu = clue.pci or ("" if clue.gpu is None else str(clue.gpu))
    why = f"{clue.signature}; the peer {clue.peer} is only named by it" if clue.peer else clue.signature
    return Suspect(why=why, rank=clue.rank, node=clue.node, gpu=gpu)


def _waited_for(clues: tuple[Clue, ...]) -> tuple[Suspect, ...]:
    """The ranks that the flight recorders or a monitored barrier miss."""
    missed = [clue for clue in clues if clue.signature in WAITED_FOR and clue.rank is not None]
    return tuple(dict.fromkeys(Suspect(why=WAITED_FOR[c.signature], rank=c.rank) for c in missed))


def _absent(clues: tuple[Clue, ...], case: Case) -> tuple[Suspect, ...]:
    """The ranks that report no time-out while the others do: they did not come to the collective."""
    waited = {clue.rank for clue in clues if clue.signature == "nccl-watchdog" and clue.rank is not None}
    if not waited:
        return ()
    absent = sorted((case.ranks | set(range(max(waited) + 1))) - waited)
    if not 0 < len(absent) <= max(1, len(waited) // 2):
        return ()
    return tuple(Suspect(why="reports no time-out while the others do", rank=rank) for rank in absent)
