"""slurmrestd's JSON (also that of `scontrol --json`), as it reads from 22.05 (v0.0.38) to 25.11. Pure.

Raises `BadReply`. Values come out as the text formats have them, times ISO in UTC, so that both may be mixed.
"""

from __future__ import annotations

import time
from typing import TypeAlias, TypeVar

import msgspec

from medevac.adapters.schedulers.slurm.values import BETWEEN, SlurmJob, SlurmNode
from medevac.ports.errors import BadReply, Unavailable


class Number(msgspec.Struct):
    """What a number is from 23.02 on."""

    set: bool = False
    number: float = 0


class Signal(msgspec.Struct):
    """What ended a job."""

    id: Number | int | None = None


class Exit(msgspec.Struct):
    """An exit code from 23.11 on."""

    return_code: Number | int | None = None
    signal: Signal | None = None


Count: TypeAlias = Number | int | None
Words: TypeAlias = list[str] | str | None


class Job(msgspec.Struct):
    """What is read of a job. Fields that are missing make it unreadable, but those that have a default here."""

    job_id: int
    job_state: Words
    restart_cnt: Count
    nodes: str | None
    start_time: Count
    end_time: Count
    submit_time: Count
    priority: Count
    requeue: bool | int
    batch_flag: bool | int
    partition: str | None
    user_name: str | None
    name: str | None
    comment: str | None
    admin_comment: str | None
    array_job_id: Count = None
    array_task_id: Count = None
    array_task_string: str | None = None
    het_job_id: Count = None
    node_count: Count = None
    tasks: Count = None
    exit_code: Exit | int | None = None
    state_reason: str | None = None
    account: str | None = None
    qos: str | None = None
    standard_output: str | None = None
    standard_error: str | None = None
    current_working_directory: str | None = None


class Node(msgspec.Struct):
    """What is read of a node."""

    name: str
    state: Words
    weight: Count
    state_flags: Words = None
    gres: str | None = None
    partitions: Words = None
    features: Words = None
    active_features: Words = None
    reason: str | None = None
    reason_set_by_user: str | None = None
    boot_time: Count = None
    comment: str | None = None


class Jobs(msgspec.Struct):
    """`GET /slurm/<version>/jobs`."""

    jobs: list[Job]
    errors: list[msgspec.Raw] = []


class Nodes(msgspec.Struct):
    """`GET /slurm/<version>/nodes`."""

    nodes: list[Node]
    errors: list[msgspec.Raw] = []


T = TypeVar("T", Jobs, Nodes)


def jobs(raw: bytes) -> tuple[SlurmJob, ...]:
    """Raises `Unavailable` where slurmrestd tells of an error: that is never "no jobs"."""
    return tuple(_job(job) for job in _read(raw, Jobs).jobs)


def nodes(raw: bytes) -> tuple[SlurmNode, ...]:
    """As `jobs`."""
    return tuple(_node(node) for node in _read(raw, Nodes).nodes)


def _read(raw: bytes, shape: type[T]) -> T:
    try:
        found = msgspec.json.decode(raw if raw.isascii() else raw.decode(errors="replace"), type=shape)
    except msgspec.DecodeError as problem:
        raise BadReply(f"slurmrestd: {problem}") from problem
    if found.errors:
        raise Unavailable(f"slurmrestd: {bytes(found.errors[0])[:300].decode(errors='replace')}")
    return found


def _job(job: Job) -> SlurmJob:
    array, task = _int(job.array_job_id), job.array_task_string or ""
    single = _known(job.array_task_id)
    task = str(single) if single is not None else task
    return SlurmJob(
        id=f"{array}_{task}" if array and task else str(job.job_id),
        number=str(job.job_id),
        state=_state(job.job_state),
        restarts=_int(job.restart_cnt),
        nodes=job.nodes or "",
        node_count=_int(job.node_count) or 1,
        tasks=_int(job.tasks) or 1,
        exit_code=_exit(job.exit_code),
        start=_time(job.start_time),
        end=_time(job.end_time),
        submit=_time(job.submit_time),
        requeue=bool(job.requeue),
        batch=bool(job.batch_flag),
        held=_known(job.priority) == 0,
        reason=job.state_reason or "",
        partition=job.partition or "",
        account=job.account or "",
        qos=job.qos or "",
        user=job.user_name or "",
        het=str(_int(job.het_job_id) or ""),
        admin_comment=job.admin_comment or "",
        comment=job.comment or "",
        stdout=job.standard_output or "",
        stderr=job.standard_error or "",
        folder=job.current_working_directory or "",
        name=job.name or "",
    )


def _node(node: Node) -> SlurmNode:
    states = frozenset(word.upper() for word in (*_words(node.state), *_words(node.state_flags)))
    return SlurmNode(
        name=node.name,
        states=states,
        gres=node.gres or "",
        partitions=_words(node.partitions),
        weight=_int(node.weight),
        features=_words(node.features),
        active=_words(node.active_features),
        complete=_known(node.weight) is not None,
        boot=_time(node.boot_time),
        comment=node.comment or "",
        reason=node.reason or "",
        reason_by=node.reason_set_by_user or "",
    )


def _state(words: Words) -> str:
    """As squeue says it: what the job goes through stands over what it was."""
    found = _words(words)
    return next((word for word in found if word in BETWEEN), found[0] if found else "")


def _words(words: Words) -> tuple[str, ...]:
    return tuple(filter(None, words.split(","))) if isinstance(words, str) else tuple(words or ())


def _known(value: Count) -> int | None:
    if isinstance(value, Number):
        return int(value.number) if value.set else None
    return value


def _int(value: Count) -> int:
    return _known(value) or 0


def _time(value: Count) -> str:
    """As squeue and scontrol have it, `2026-11-30T22:01:02`; "" for none."""
    seconds = _int(value)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) if seconds else ""


def _exit(value: Exit | int | None) -> str:
    """The raw wait status, or `code:signal`, as `parse.exit_status` reads both."""
    if isinstance(value, Exit):
        return f"{_int(value.return_code)}:{_int(value.signal.id) if value.signal else 0}"
    return str(value or 0)
