"""An attempt's end as a case: what its output said, what its GPUs did meanwhile, how earlier ones ended."""

from __future__ import annotations

from collections.abc import Iterable

from medevac.core.decision import Incident
from medevac.core.diagnose import diagnose
from medevac.core.diagnose_case import Case, Clue, Diagnosis, PastEnd
from medevac.core.events import AttemptEnded
from medevac.core.jobs import Job

HARDWARE_WEIGHT = {"critical": 96, "warning": 70, "info": 0}
CERTAIN = 0.7
OWN_FAULTS = frozenset({"user-code", "out-of-memory"})
SHARED_FAULTS = frozenset({"hardware", "network", "system-software"})


def explain(job: Job, ended: AttemptEnded, incidents: Iterable[Incident]) -> Diagnosis:
    """The verdict on how this attempt ended."""
    output = job.output.clues if job.output else ()
    case = Case(
        clues=(*output, *_hardware(job, incidents)),
        ranks=frozenset(job.output.ranks if job.output else ()) | frozenset(place.rank for place in job.ranks),
        nodes=job.nodes(),
        started=job.started_at or None,
        ended=ended.at,
        history=job.ends,
    )
    return diagnose(case)


def past_end(verdict: Diagnosis, step: int) -> PastEnd:
    """What later attempts are compared with."""
    named = next((one.node for one in verdict.suspects if one.node), "")
    signature = verdict.root[0].signature if verdict.root else ""
    return PastEnd(cause=verdict.cause, node=named, step=max(step, 0), signature=signature)


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
    if first is None:
        return ()
    place = next((place for place in job.ranks if place.rank == first.rank), None)
    if place is not None:
        return place.gpus or (place.node,)
    return (first.node,) if first.node in job.nodes() else ()


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
                at=finding.at,
            )
