"""What people did to nodes and jobs, as Slurm's accounting tells it: sacct, and sacctmgr's node events.

What Slurm does by itself (a node that does not respond, a requeue after that), and what Medevac did, is left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from medevac.adapters.schedulers.slurm import parse
from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.marks import AUTOMATIC, drain_tag
from medevac.core.compare import Deed
from medevac.ports.errors import Refused, Unsupported

Row = Mapping[str, str]
JOBS = "JobID,State,Submit,Start,End,User,UID"
EVENTS = "NodeName,TimeStart,TimeEnd,State,Reason,User"
ITSELF = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
"""After these Slurm runs a job again by itself."""

_SIGNED = re.compile(r"(.*) \[([^\]@\s]*)@(\d{4}-\d\d-\d\dT[\d:]+)\]", re.DOTALL)
_CANCELLED = re.compile(r"CANCELLED by (\d+)")


async def deeds(commands: Commands, since: float) -> list[Deed]:
    """Since then (unix seconds), in order of time. Raises `Unsupported` where Slurm keeps no accounting,
    `Unavailable`, `BadReply`.
    """
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
    try:
        jobs = await commands.run("sacct", "-a", "-X", "-D", "-P", "-S", start, "-o", JOBS)
        nodes = await commands.run("sacctmgr", "-P", "show", "event", f"Start={start}", f"Format={EVENTS}")
    except Refused as problem:
        raise Unsupported(
            f"what people did is read from Slurm's accounting (slurmdbd), which is not there: {problem}"
        ) from problem
    found = [*job_deeds(parse.table(jobs)[0]), *node_deeds(parse.table(nodes)[0])]
    return sorted((deed for deed in found if deed.at >= since), key=lambda deed: deed.at)


def job_deeds(rows: Iterable[Row]) -> Iterator[Deed]:
    """Cancellations, and requeues by a person: a run's record that another of the same job follows."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(row["JobID"], []).append(row)
    for job, of_job in runs.items():
        of_job.sort(key=lambda row: parse.seconds(row["Submit"]) or 0.0)
        for before, after in pairwise(of_job):
            at = parse.seconds(after["Submit"])
            if at is not None and before["State"].split(" ")[0] not in ITSELF:
                yield Deed(what="requeue", subject=f"slurm-{job}", at=at, why=f"after {before['State']}")
        yield from _cancelled(job, of_job[-1])


def _cancelled(job: str, row: Row) -> Iterator[Deed]:
    by, at = _CANCELLED.match(row["State"]), parse.seconds(row["End"])
    if by and at is not None:
        owner = by[1] == row["UID"]
        who = row["User"] if owner else f"uid {by[1]}"
        yield Deed(what="cancel", subject=f"slurm-{job}", at=at, who=who, routine=owner)


def node_deeds(rows: Iterable[Row]) -> Iterator[Deed]:
    """Drains and downs by a person. One whose state changes while its reason stands (draining, drained) is one."""
    told: set[tuple[str, str]] = set()
    for row in sorted(rows, key=lambda row: parse.seconds(row["TimeStart"]) or 0.0):
        node, state, reason = row["NodeName"], parse.states(row["State"]), row["Reason"].strip()
        signed = _SIGNED.fullmatch(reason)
        why, who = (signed[1], signed[2]) if signed else (reason, row["User"].partition("(")[0])
        out = any(word.startswith(("DRAIN", "DOWN", "FAIL")) for word in state)
        if not node or not out or not why or AUTOMATIC.search(why) or "maint" in why.lower() or drain_tag(why):
            continue
        at = parse.seconds(signed[3] if signed else row["TimeStart"])
        key = (node, reason)
        if at is not None and key not in told:
            told.add(key)
            yield Deed(what="drain", subject=node, at=at, who=who, why=why)
