"""What a job says of differences between its replicas. Blamed is a part that was wrong twice, another being right."""

from __future__ import annotations

from medevac.core.decision import Clause, Finding, Part
from medevac.core.events import CorruptionSeen
from medevac.core.jobs import Job

MEANT = {
    "found": "replicas of the state differ; the steps are done again",
    "again": "the same rank is wrong again on the same part: it is given another one",
    "transient": "the steps done again came out well: a transient fault",
    "hardware": "silent data corruption: wrong on this part each time, right on another",
    "software": "the same rank is wrong on every part it runs on: software",
    "unclear": "replicas differ in another way each time: no part can be blamed",
}


def findings(job: Job | None, event: CorruptionSeen) -> tuple[Finding, ...]:
    """The news as a finding. A job speaks of parts that it runs or has run on, and of no others."""
    if job is None:
        return ()
    blamed = event.gpu or event.node
    known = blamed in {*job.gpus(), *job.nodes(), *job.culprits}
    hard = event.outcome == "hardware" and bool(blamed) and known
    part = Part(domain="job", name=event.job, node=event.node)
    if hard:
        part = Part(domain="gpu" if event.gpu else "node", name=blamed, node=event.node, pci=event.pci)
    finding = Finding(
        rule="silent-corruption",
        part=part,
        severity="critical" if hard else "warning",
        meaning=MEANT["hardware"] if hard else words(event),
        response="hard" if hard else "none",
        repair="memory and arithmetic tests before new work" if hard else "",
        family="memory" if hard else "",
        at=event.seen_at or event.at,
        clauses=(
            Clause(says="found after step", value=event.step),
            Clause(says="all agreed after step", value=event.since),
            Clause(says="in", value=", ".join(event.tensors)),
        ),
        facts=(event.id,) if event.id else (),
    )
    return (finding,)


def left(job: Job) -> tuple[str, ...]:
    """The GPUs (else the node) that this attempt's wrong rank must not be given again, however the attempt ended."""
    seen = job.corrupted
    place = next((one for one in job.ranks if seen and one.rank == seen.rank), None)
    if seen is None or seen.outcome != "again" or place is None:
        return ()
    return (seen.gpu,) if seen.gpu in place.gpus else place.gpus or (place.node,)


def words(event: CorruptionSeen) -> str:
    """The event in one line."""
    gpu = f" ({event.gpu})" if event.gpu else ""
    who = f"rank {event.rank} on {event.node}{gpu}" if event.rank is not None else "no rank named"
    return f"step {event.step}, {who}, {', '.join(event.tensors) or 'no tensor named'}: {MEANT[event.outcome]}"
