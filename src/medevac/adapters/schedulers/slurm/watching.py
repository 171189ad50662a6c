"""From what Slurm shows now and what was known before, what happened to a job. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from medevac.adapters.schedulers.slurm.hostlist import expand
from medevac.adapters.schedulers.slurm.marks import standing_mark
from medevac.adapters.schedulers.slurm.memory import JobMemory, Run
from medevac.adapters.schedulers.slurm.parse import exit_status, seconds
from medevac.adapters.schedulers.slurm.values import BETWEEN, RUNS, WAITS, JobDetail, SlurmJob
from medevac.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    JobPolicy,
    JobSubmitted,
    Node,
    OrderGiven,
    RankPlace,
)

SOURCE = "slurm"
KILLED, TERMINATED = 137, 143
BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
FOR_GOOD = {
    "CANCELLED": "it was cancelled in Slurm",
    "TIMEOUT": "its time limit in Slurm was reached",
    "DEADLINE": "its deadline in Slurm was reached",
    "REVOKED": "its sibling in a federation started",
}
"""Ends that stand: no run follows them unless a person requeues the job."""


def name_of(job: SlurmJob) -> str:
    """`slurm-17`; an array's task `slurm-12_3`."""
    return f"slurm-{job.id}"


def array_of(job: SlurmJob) -> str:
    """`slurm-12` of its task `slurm-12_3`, "" for a job that is no task."""
    array, task, _ = job.id.partition("_")
    return f"slurm-{array}" if task else ""


def finished(job: SlurmJob) -> bool:
    """Its processes are gone and it is not in the queue."""
    return job.state not in RUNS | WAITS | BETWEEN


def began(job: SlurmJob, memory: JobMemory) -> bool:
    """A run that is not known yet has its processes, or had them."""
    if job.state not in RUNS and not (finished(job) and job.nodes):
        return False
    return not memory.runs or not _is(job, memory.runs[-1])


def over(job: SlurmJob, memory: JobMemory) -> bool:
    """The last known run has ended."""
    if not memory.runs or memory.runs[-1].ended or job.state in BETWEEN:
        return False
    return finished(job) or job.state in WAITS or not _is(job, memory.runs[-1])


def _is(job: SlurmJob, run: Run) -> bool:
    """A slurmctld that lost its last seconds runs a job again without counting it."""
    return (job.restarts, job.start) == (run.restarts, run.start)


def with_start(
    memory: JobMemory, job: SlurmJob, ranks: tuple[RankPlace, ...], policy: JobPolicy, now: float
) -> JobMemory:
    """The memory with the job's present run."""
    number = memory.runs[-1].started.attempt + 1 if memory.runs else job.restarts + 1
    at = seconds(job.start) or now
    submitted = memory.submitted or JobSubmitted(
        at=seconds(job.submit) or now,
        id=f"{memory.name}/submitted",
        source=SOURCE,
        job=memory.name,
        command=(job.name,),
        ranks=len(ranks),
        policy=policy,
        array=array_of(job),
    )
    started = AttemptStarted(
        at=at,
        id=f"{memory.name}/{number}/started",
        source=SOURCE,
        job=memory.name,
        attempt=number,
        ranks=ranks,
        resume_from=memory.resume.get(number),
    )
    return replace(memory, submitted=submitted, order=None).with_run(
        Run(restarts=job.restarts, start=job.start, started=started)
    )


def with_loss(memory: JobMemory, row: dict[str, str] | None, now: float) -> JobMemory:
    """The memory of a job that slurmctld knows no more while its run had not ended: as the accounting tells its end
    (`row` of sacct), else as lost. Nothing can requeue it.
    """
    run = memory.runs[-1]
    attempt = run.started.attempt
    code, signal = exit_status((row or {}).get("ExitCode", "1:0"))
    state = (row or {}).get("State", "LOST").split(" ")[0]
    good = state == "COMPLETED" and code == 0 and signal == 0
    ended = AttemptEnded(
        at=seconds((row or {}).get("End", "")) or now,
        id=f"{memory.name}/{attempt}/ended",
        source=SOURCE,
        job=memory.name,
        attempt=attempt,
        code=0 if good else (128 + signal if signal else code or 1),
        why="" if state in BY_ITSELF else state.lower().replace("_", "-"),
    )
    order = OrderGiven(
        at=ended.at,
        id=f"{memory.name}/{attempt}/lost",
        source=SOURCE,
        what="stop",
        who="Slurm",
        target=memory.name,
        why="slurmctld knows the job no more",
    )
    return replace(memory, order=None if good else order).with_run(replace(run, ended=ended))


def with_end(memory: JobMemory, job: SlurmJob, now: float) -> JobMemory:
    """The memory with the end of its last run."""
    run = memory.runs[-1]
    attempt = run.started.attempt
    same = finished(job) and _is(job, run)
    code, why = _end(job, run, same=same)
    ended = AttemptEnded(
        at=(seconds(job.end) if same else None) or now,
        id=f"{memory.name}/{attempt}/ended",
        source=SOURCE,
        job=memory.name,
        attempt=attempt,
        code=code,
        why=why,
    )
    order = memory.order
    if same and job.state in FOR_GOOD and not run.stopping:
        order = OrderGiven(
            at=ended.at,
            id=f"{memory.name}/{attempt}/{job.state.lower()}",
            source=SOURCE,
            what="stop",
            who="Slurm",
            target=memory.name,
            why=FOR_GOOD[job.state],
        )
    return replace(memory, order=order).with_run(replace(run, ended=ended))


def _end(job: SlurmJob, run: Run, *, same: bool) -> tuple[int, str]:
    code, signal = exit_status(job.exit_code)
    code = 128 + signal if signal else code
    if run.stopping:
        return code or KILLED, "stopped"
    if not same:
        return code or TERMINATED, "requeued"
    if job.state in BY_ITSELF:
        return code or (0 if job.state == "COMPLETED" else 1), ""
    return code or TERMINATED, job.state.lower().replace("_", "-")


def events(memory: JobMemory) -> list[AnyEvent]:
    """All that is known, in its order."""
    found: list[AnyEvent] = [memory.submitted] if memory.submitted else []
    for run in memory.runs:
        found.append(run.started)
        if memory.order and run.ended and run is memory.runs[-1]:
            found.append(memory.order)
        found += [run.ended] if run.ended else []
    return found


def places(job: SlurmJob, detail: JobDetail, nodes: dict[str, Node]) -> tuple[RankPlace, ...]:
    """One rank a GPU in the order of Slurm's node list; where no GPU is known, one a task."""
    found: list[RankPlace] = []
    hosts = expand(job.nodes)
    tasks = max(1, job.tasks // max(len(hosts), 1))
    for host in hosts:
        known = {gpu.index: gpu.uuid for gpu in nodes[host].gpus} if host in nodes else {}
        gpus = [(known[index],) for index in detail.gpus.get(host, ()) if index in known]
        for local, mine in enumerate(gpus or [()] * tasks):
            found.append(RankPlace(rank=len(found), node=host, gpus=mine, local_rank=local))
    return tuple(found)


def held_by_us(job: SlurmJob, memory: JobMemory) -> bool:
    """Our stop's hold without its mark: a slurmctld that died between the two came back without what it was told last,
    and was asked for the hold only then.
    """
    return bool(memory.runs) and memory.runs[-1].stopping and "requeued in held state" in job.reason.lower()


def held_by_a_person(job: SlurmJob, memory: JobMemory) -> bool:
    """Or by Slurm, not by us. `scontrol hold` of a job that runs counts when it goes back into the queue; one that is
    suspended has the priority of a hold, and is none (slurmctld, job_mgr.c: "manually suspended, not gang").
    """
    mark = standing_mark(job)
    return job.held and job.state != "SUSPENDED" and (mark.theirs if mark else not held_by_us(job, memory))


def reused(job: SlurmJob, memory: JobMemory) -> bool:
    """Slurm gave the number to another job: its count of restarts began anew."""
    if not memory.runs:
        return False
    return job.restarts < memory.runs[-1].restarts or (job.restarts == 0 and job.submit != memory.submit)
