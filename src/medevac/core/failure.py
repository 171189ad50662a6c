"""An attempt's end as a case: what its output said, what its GPUs did meanwhile, how earlier ones ended."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from medevac.core.decision import Clause, Finding, Incident, Part
from medevac.core.diagnose import diagnose
from medevac.core.diagnose_case import Case, Clue, Diagnosis, PastEnd
from medevac.core.events import AttemptEnded, OutputRead
from medevac.core.job_recovery import ALIVE
from medevac.core.jobs import Job

HARDWARE_WEIGHT = {"critical": 96, "warning": 70, "info": 0}
CERTAIN = 0.7
SENT_BY_OTHERS = frozenset({2, 15})
"""SIGINT and SIGTERM: whoever got them was told to go."""
FIRST_SIGNAL = 128
OWN_FAULTS = frozenset({"user-code", "out-of-memory"})
SHARED_FAULTS = frozenset({"hardware", "network", "system-software"})


def explain(job: Job, ended: AttemptEnded, incidents: Iterable[Incident]) -> Diagnosis:
    """The verdict on how this attempt ended."""
    output = job.output.clues if job.output else ()
    case = Case(
        clues=(*output, *job.examined, *_hardware(job, incidents), *_own_signs(job, ended)),
        ranks=frozenset(job.output.ranks if job.output else ()) | frozenset(place.rank for place in job.ranks),
        nodes=job.nodes(),
        started=job.started_at or None,
        ended=ended.at,
        step=max(job.reached, 0),
        history=job.ends,
    )
    return diagnose(case)


def failing(job: Job | None, event: OutputRead) -> tuple[Finding, ...]:
    """What the lines of an attempt that still runs name as the cause of a crash: a warning that moves nothing."""
    if job is None or not event.live or event.attempt != job.attempt or job.state not in {*ALIVE} - {"stopping"}:
        return ()  # what is printed while we stop it is our own doing
    homes = {place.rank: place.node for place in job.ranks}
    clues = tuple(replace(c, node=c.node or homes.get(-1 if c.rank is None else c.rank, "")) for c in event.clues)
    verdict = diagnose(Case(clues=clues, ranks=frozenset(homes), nodes=job.nodes(), started=job.started_at or None))
    if verdict.abstained or verdict.symptom != "crash":
        return ()
    root, first = verdict.root[0], next(iter(verdict.suspects), None)
    where = f" on {first.node}" if first and first.node else ""
    who = f"rank {first.rank}{where}: " if first and first.rank is not None else ""
    return (
        Finding(
            rule="crash",
            part=Part(domain="job", name=event.job),
            severity="warning",
            meaning=f"attempt {event.attempt} fails: {verdict.cause}: {who}{root.text.strip()}",
            at=event.seen_at or event.at,
            clauses=(Clause(says=f"{root.signature}: confidence in {verdict.cause}", value=verdict.confidence),),
            facts=(event.id,) if event.id else (),
        ),
    )


def past_end(verdict: Diagnosis, step: int) -> PastEnd:
    """What later attempts are compared with."""
    named = next((one.node for one in verdict.suspects if one.node), "")
    signature = verdict.root[0].signature if verdict.root else ""
    return PastEnd(cause=verdict.cause, node=named, step=max(step, 0), signature=signature)


def failed_as(verdict: Diagnosis, code: int) -> str:
    """What other tasks of an array may fail with as well; "" for a fault of the hardware, and for a signal."""
    if verdict.cause in {"hardware", "preemption"} and not verdict.abstained:
        return ""
    if verdict.abstained or verdict.cause == "unknown":
        return f"exit code {code}" if 0 < code < FIRST_SIGNAL else ""
    return f"{verdict.cause}: {verdict.root[0].signature}" if verdict.root else verdict.cause


def own_mistake(job: Job, verdict: Diagnosis) -> bool:
    """The job's own mistake, for certain: at once where it never got further, else when it comes a second time.

    The job has taken in this end as its last one already.
    """
    if verdict.abstained or verdict.cause not in OWN_FAULTS:
        return False
    signature = verdict.root[0].signature if verdict.root else ""
    again = any(end.cause == verdict.cause and end.signature == signature for end in job.ends[:-1])
    return again or (verdict.cause == "user-code" and verdict.confidence >= CERTAIN and not job.passed())


def blamed(job: Job, verdict: Diagnosis) -> tuple[str, ...]:
    """GPUs (else the node) of the part at fault, where a shared part is named for certain."""
    if verdict.abstained or verdict.cause not in SHARED_FAULTS or verdict.confidence < CERTAIN:
        return ()
    first = verdict.suspects[0] if verdict.suspects else None
    if first is None or not job.spec.gpus_per_rank:  # a launcher's ranks are not its agents
        return ()
    place = next((place for place in job.ranks if place.rank == first.rank), None)
    if place is not None:
        return place.gpus or (place.node,)
    return (first.node,) if first.node in job.nodes() else ()


def _own_signs(job: Job, ended: AttemptEnded) -> Iterable[Clue]:
    """What the attempt itself showed: how it ended, what its ranks reported last."""
    homes = {place.rank: place.node for place in job.ranks}
    if job.on == "hung":
        yield Clue(signature="no-progress", role="symptom", symptom="hang", names="none", text=job.why)
        for place in job.behind():
            text = f"rank {place.rank} reported step {job.rank_steps.get(place.rank, -1)} last, behind the others"
            yield Clue(
                signature="reports-behind", role="symptom", symptom="hang", text=text, rank=place.rank, node=place.node
            )
    if job.bad and job.bad[-1][0] == job.attempt:
        rank = job.bad_rank
        yield Clue(
            signature="non-finite-report",
            role="root",
            cause="numerical",
            weight=82,
            text=f"rank {rank} reports a non-finite value at step {job.bad[-1][1]}",
            rank=rank,
            node=homes.get(rank if rank is not None else -1, ""),
        )
    first = ended.exits[0] if ended.exits and not ended.why else None
    if first and len(job.ranks) > 1 and first.signal not in SENT_BY_OTHERS and first.code:
        how = f"signal {first.signal}" if first.signal else f"exit code {first.code}"
        text = f"the first to end: {how}"
        yield Clue(signature="ended-first", role="symptom", text=text, rank=first.rank, node=homes.get(first.rank, ""))


def _hardware(job: Job, incidents: Iterable[Incident]) -> Iterable[Clue]:
    """Findings on what the attempt ran on, since shortly before it began, in the words of a diagnosis."""
    homes = {gpu: place for place in job.ranks for gpu in place.gpus}
    for incident in incidents:
        for finding in incident.findings:
            place = homes.get(finding.part.name)
            weight = HARDWARE_WEIGHT[finding.severity]
            if place is None or not weight or incident.closed:
                continue
            yield Clue(
                signature=finding.rule,
                role="root",
                cause="hardware",
                names="gpu",
                weight=weight,
                text=finding.meaning,
                rank=place.rank,
                node=finding.part.node,
                pci=finding.part.pci,
                fields={"family": finding.family} if finding.family else {},
                at=finding.at,
            )
