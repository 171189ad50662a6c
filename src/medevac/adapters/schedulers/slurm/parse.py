"""Slurm's text formats, as they read from 21.08 to 26.11. Pure; raises `BadReply` for what is not of the format."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

from medevac.adapters.schedulers.slurm.hostlist import expand, numbers
from medevac.adapters.schedulers.slurm.values import BETWEEN, RUNS, JobDetail, Partition, SlurmJob, SlurmNode
from medevac.ports.errors import BadReply

FIELDS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "State",
    "RestartCnt",
    "NodeList",
    "NumNodes",
    "NumTasks",
    "exit_code",
    "StartTime",
    "EndTime",
    "SubmitTime",
    "Requeue",
    "BatchFlag",
    "PriorityLong",
    "Reason",
    "Partition",
    "Account",
    "QOS",
    "UserName",
    "admin_comment",
    "Comment",
    "StdOut",
    "StdErr",
    "WorkDir",
    "Name",
)
"""Of `squeue -O`, whose suffix (`Field:suffix`) prints a value whole and unpadded."""


def squeue_format(mark: str) -> str:
    """The argument of `squeue -O`. `mark` is drawn anew for each call, so that no comment or job name can contain what
    separates fields and records.
    """
    last = len(FIELDS) - 1
    return ",".join(f"{field}:{'#' if n < last else '$'}{mark}" for n, field in enumerate(FIELDS))


def squeue(text: str, mark: str) -> tuple[SlurmJob, ...]:
    """The jobs of `squeue -h -O <squeue_format(mark)>`."""
    records = text.split(f"${mark}")
    if records.pop().strip():
        raise BadReply("squeue: its answer ends in the middle of a job")
    return tuple(_job(record.lstrip("\n").split(f"#{mark}")) for record in records)


def _job(words: list[str]) -> SlurmJob:
    if len(words) != len(FIELDS):
        raise BadReply(f"squeue: {len(words)} fields where {len(FIELDS)} were asked for: {words[0]!r}")
    (number, array, task, het, state, restarts, nodes, node_count, tasks, exit_code, start, end, submit, requeue) = (
        words[:14]
    )
    batch, priority, reason, partition, account, qos, user, admin, comment, stdout, stderr, folder, name = words[14:]
    try:
        return SlurmJob(
            id=f"{array}_{task}" if task not in _NONE and array not in _NONE else number,
            number=number,
            state=state,
            restarts=int(restarts),
            nodes="" if nodes in _NONE else nodes,
            node_count=_count(node_count),
            tasks=_count(tasks),
            exit_code=exit_code,
            start=start,
            end=end,
            submit=submit,
            requeue=requeue not in {"0", "No", "NO"},
            batch=batch not in {"0", "No", "NO"},
            held=priority == "0",
            reason=reason,
            partition=partition,
            account=_word(account),
            qos=_word(qos),
            user=user,
            het="" if het in _NONE else het,
            admin_comment=_word(admin),
            comment=_word(comment),
            stdout=_word(stdout),
            stderr=_word(stderr),
            folder=folder,
            name=name,
        )
    except ValueError as problem:
        raise BadReply(f"squeue: job {number!r}: {problem}") from problem


_NONE = frozenset({"", "0", "N/A", "n/a", "(null)", "NULL", "None"})


def _word(text: str) -> str:
    return "" if text in {"(null)", "N/A", "n/a"} else text


def _count(text: str) -> int:
    """`4`, `4-8` (at least four), `1.5K`."""
    first = text.split("-", maxsplit=1)[0]
    scale = {"K": 1024, "M": 1024**2}.get(first[-1:].upper(), 1)
    return int(float(first[:-1]) * scale) if scale > 1 else int(first or 1)


# --- scontrol show ---------------------------------------------------------------------------------------------------


def records(text: str, first: str) -> Iterator[str]:
    """The records of `scontrol show`, each as one line, whether it came with `-o` or on several lines. `first` is the
    key that begins one.
    """
    begins = f"{first}="
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith(begins) and lines:
            yield " ".join(lines)
            lines = []
        if lines or line.startswith(begins):
            lines.append(line.strip())
    if lines:
        yield " ".join(lines)


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|\s){re.escape(key)}=(\S*)")


_NODE = re.compile(
    r"(?:^|\s)(NodeName|State|Gres|Partitions|Weight|AvailableFeatures|ActiveFeatures|Features|BootTime)=(\S*)"
)
_COMMENT = re.compile(r"\sComment=(.*?)\s*(?=$|\s(?:Extra|InstanceId|InstanceType|ResumeAfterTime|Reservation)=)")
_SIGNED_REASON = re.compile(r"\sReason=(.*) \[([^\]@\s]*)@(\d{4}-[^\]]*)\]")
_REASON = re.compile(r"\sReason=(.*?)()()(?=$|\s+(?:Comment|Extra|ResumeAfterTime)=)")
_STATE_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT",
    "^": "REBOOT",
    "!": "POWER_DOWN",
    "-": "PLANNED",
    "+": "CLOUD",
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def nodes(text: str) -> tuple[SlurmNode, ...]:
    """`scontrol [-o] show node`."""
    found = tuple(_node(record) for record in records(text, "NodeName"))
    if not found and text.strip() and "No nodes" not in text:
        raise BadReply(f"scontrol show node: no nodes in {text[:80]!r}")
    return found


def _node(record: str) -> SlurmNode:
    told = {key: _word(value) for key, value in reversed(_NODE.findall(record))}  # the first of a key stands
    boot = told.get("BootTime", "")
    comment = _COMMENT.search(record) if "Comment=" in record else None
    reason = (_SIGNED_REASON.search(record) or _REASON.search(record)) if "Reason=" in record else None
    return SlurmNode(
        name=told["NodeName"],
        states=states(told.get("State", "")),
        gres=told.get("Gres", ""),
        partitions=_words(told.get("Partitions", "")),
        weight=int(told.get("Weight") or 1),
        features=_words(told.get("AvailableFeatures") or told.get("Features", "")),
        active=_words(told.get("ActiveFeatures", "")),
        complete=told.keys() >= {"State", "Weight", "BootTime"},
        boot=boot if seconds(boot) else "",
        comment=comment[1] if comment else "",
        reason=reason[1].strip() if reason else "",
        reason_by=reason[2] if reason else "",
        reason_at=reason[3] if reason else "",
    )


@lru_cache(maxsize=1024)
def states(text: str) -> frozenset[str]:
    """The words of a node's `State=`: `IDLE+DRAIN`, `MIXED*+CLOUD`, `down*`."""
    found = set()
    for word in text.upper().split("+"):
        name = word.rstrip("".join(_STATE_MARKS))
        found |= {name} | {_STATE_MARKS[mark] for mark in word[len(name) :]}
    return frozenset(found - {""})


def partitions(text: str) -> tuple[Partition, ...]:
    """`scontrol [-o] show partition`."""
    found = []
    for record in records(text, "PartitionName"):
        words = {key: value for key, _, value in (word.partition("=") for word in record.split())}
        names = _hosts("scontrol show partition", words.get("Nodes", ""))
        sets, state = _word(words.get("NodeSets", "")), words.get("State", "")
        found.append(Partition(name=words["PartitionName"], nodes=names, state=state, node_sets=sets))
    return tuple(found)


def reservations(text: str) -> dict[str, tuple[str, ...]]:
    """Name -> nodes, of `scontrol [-o] show reservation`."""
    found = {}
    for record in records(text, "ReservationName"):
        words = {key: value for key, _, value in (word.partition("=") for word in record.split())}
        found[words["ReservationName"]] = _hosts("scontrol show reservation", words.get("Nodes", ""))
    return found


def racks(text: str) -> dict[str, str]:
    """Node -> the lowest switch above it, of `scontrol show topology` (empty where the site has no such plugin)."""
    found: dict[str, tuple[int, str]] = {}
    for line in text.split("\n"):
        words = {key: value for key, _, value in (word.partition("=") for word in line.split())}
        if "SwitchName" not in words:
            continue
        level = int(words.get("Level", "0") or 0)
        for node in _hosts("scontrol show topology", words.get("Nodes", "")):
            if node not in found or level < found[node][0]:
                found[node] = (level, words["SwitchName"])
    return {node: switch for node, (_, switch) in found.items()}


def config(text: str) -> dict[str, str]:
    """`scontrol show config`."""
    pairs = (line.partition("=") for line in text.split("\n") if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


_DETAIL = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_EXCLUDED = _pattern("ExcNodeList")
_INDEX = re.compile(r"gpu[^,(]*\(IDX:([0-9,-]+)\)")


def job_detail(text: str, name: str) -> JobDetail:
    """`scontrol -d -o show job ID`, of a heterogeneous job with all parts; `name` is the job's own, whose text is
    left out of the reading.
    """
    record = text.replace(f"JobName={name} ", "JobName= ")
    excluded = _EXCLUDED.search(record)
    gpus: dict[str, tuple[int, ...]] = {}
    for hosts, gres in _DETAIL.findall(record):
        indices = tuple(number for found in _INDEX.findall(gres) for number in numbers(found))
        gpus |= dict.fromkeys(_hosts("scontrol show job", hosts), indices)
    return JobDetail(excluded=_hosts("scontrol show job", _word(excluded[1]) if excluded else ""), gpus=gpus)


def _hosts(what: str, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as problem:
        raise BadReply(f"{what}: {problem}") from problem


# --- tables ----------------------------------------------------------------------------------------------------------


def table(text: str, separator: str = "|") -> tuple[list[dict[str, str]], int]:
    """`sacct -P` or `sinfo` with a header line: rows by column, and how many could not be read.

    A line break inside a value (a job's name or comment) is joined again where the pieces then have the right count.
    """
    lines = text.split("\n")
    header = lines[0].rstrip("\r").split(separator)
    rows, unread, open_ = [], 0, ""
    for raw in lines[1:]:
        if not raw and not open_:
            continue
        line = f"{open_}\n{raw}" if open_ else raw
        count = line.count(separator) + 1
        if count == len(header):
            rows.append(dict(zip(header, line.rstrip("\r").split(separator), strict=True)))
            open_ = ""
        elif count < len(header):
            open_ = line
        else:
            whole = raw.count(separator) + 1 == len(header)
            unread += 1
            if whole:
                rows.append(dict(zip(header, raw.rstrip("\r").split(separator), strict=True)))
            open_ = ""
    return rows, unread + bool(open_.strip())


# --- small values ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def seconds(text: str) -> float | None:
    """Unix seconds of `2026-11-30T22:01:02` (UTC, as `Commands` has them told); None for Unknown, NONE, N/A."""
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return float(text) if text.isdigit() and text != "0" else None


def exit_status(text: str) -> tuple[int, int]:
    """(code, signal) of squeue's `exit_code`: the raw wait status, or `code:signal` as sacct has it."""
    code, colon, sig = text.partition(":")
    try:
        if colon:
            return int(code), int(sig) & 0x7F
        raw = int(code)
    except ValueError:
        return 0, 0
    return (raw >> 8) & 0xFF, raw & 0x7F


def het_groups(jobs: Iterable[SlurmJob]) -> tuple[SlurmJob, ...]:
    """Jobs with the components of a heterogeneous one drawn together into its leader: it is in the queue, or over, when
    all of them are.
    """
    import msgspec

    parts: dict[str, list[SlurmJob]] = {}
    alone: list[SlurmJob] = []
    for job in jobs:
        (parts.setdefault(job.het, []) if job.het else alone).append(job)
    for leader, members in parts.items():
        first = next((job for job in members if job.number == leader), members[0])
        hosts = ",".join(job.nodes for job in members if job.nodes)
        count, tasks = sum(job.node_count for job in members), sum(job.tasks for job in members)
        rests = first.state not in RUNS | BETWEEN
        state = "COMPLETING" if rests and any(job.state in RUNS | BETWEEN for job in members) else first.state
        parts_of = tuple(job.number for job in members)
        alone.append(
            msgspec.structs.replace(first, state=state, parts=parts_of, nodes=hosts, node_count=count, tasks=tasks)
        )
    return tuple(alone)
