"""Which checkpoints are clean: by who took part in them, and when, and what became of those."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Literal

from medevac.core.decision import Struct
from medevac.core.jobs import Checkpoint, Job

State = Literal["clean", "suspect", "condemned"]


class Doubt(Struct, frozen=True, kw_only=True):
    """Results of a GPU after `since` may be wrong, after `fault_at` they are, until it was repaired (`until`)."""

    since: float
    fault_at: float
    why: str
    until: float | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """What is thought of a checkpoint, and why."""

    state: State
    why: str = ""


CLEAN = Verdict(state="clean")


def verdicts(job: Job, doubts: Mapping[str, tuple[Doubt, ...]]) -> dict[int, Verdict]:
    """A verdict for each checkpoint of the job, oldest first. A child of a doubtful one is doubtful."""
    known: dict[int, Verdict] = {}
    for step in sorted(job.checkpoints):
        checkpoint = job.checkpoints[step]
        own = _own(job, checkpoint, doubts)
        parent = known.get(checkpoint.parent) if checkpoint.parent is not None else None
        inherits = own.state == "clean" and parent is not None and parent.state != "clean" and step != job.trusted
        known[step] = Verdict(state="suspect", why=f"it continues step {checkpoint.parent}") if inherits else own
    return known


def newest_clean(job: Job, doubts: Mapping[str, tuple[Doubt, ...]]) -> int | None:
    """The step to resume from: the one that a person has ordered for the next start, else the newest clean one."""
    clean = [step for step, verdict in verdicts(job, doubts).items() if verdict.state == "clean"]
    return job.ordered if job.ordered in clean else max(clean, default=None)


def _own(job: Job, checkpoint: Checkpoint, doubts: Mapping[str, tuple[Doubt, ...]]) -> Verdict:
    """What is thought of a checkpoint by itself, its parent aside."""
    if checkpoint.sealed_at is not None and checkpoint.problem:
        return Verdict(state="condemned", why=checkpoint.problem)
    if checkpoint.step == job.trusted:
        return Verdict(state="clean", why="by a person's order")
    if checkpoint.sealed_at is None:
        return Verdict(state="suspect", why=checkpoint.problem or "it has no seal")
    for attempt, step in job.bad:
        if checkpoint.attempt == attempt and checkpoint.step >= step - 1:
            state: State = "condemned" if checkpoint.step >= step else "suspect"
            return Verdict(state=state, why=f"NaN or infinity was seen at step {step} of attempt {attempt}")
    return _told(checkpoint) or _doubted(checkpoint, checkpoint.sealed_at, doubts)


def doubted_as(gpu: str, node: str) -> tuple[str, ...]:
    """Under which names doubt about a GPU of a node is kept: its own, and its node's where the fault named no GPU.

    A GPU that is not known (a seal without identities) may be any of its node.
    """
    return (gpu, node) if gpu else (node, some_gpu_of(node))


def some_gpu_of(node: str) -> str:
    """The name under which doubts about known GPUs of a node are kept for those that know only the node."""
    return f"{node}/*"


def _doubted(checkpoint: Checkpoint, sealed_at: float, doubts: Mapping[str, tuple[Doubt, ...]]) -> Verdict:
    worst = CLEAN
    for rank in checkpoint.ranks:
        kept = [doubts.get(name, ()) for name in doubted_as(rank.gpu_uuid, rank.node)]
        for doubt in chain.from_iterable(kept):
            if sealed_at < doubt.since or (doubt.until is not None and sealed_at >= doubt.until):
                continue
            if sealed_at >= doubt.fault_at:
                return Verdict(state="condemned", why=f"rank {rank.rank} took part after its GPU's fault: {doubt.why}")
            worst = Verdict(state="suspect", why=f"sealed after the last sound reading of rank {rank.rank}'s GPU")
    return worst


def _told(checkpoint: Checkpoint) -> Verdict | None:
    """A verdict that stands in the lineage file, by another store's or a person's hand, newer than the seal."""
    stands = checkpoint.written_at >= (checkpoint.sealed_at or 0.0)
    if stands and checkpoint.written != "" and checkpoint.written != "clean":  # noqa: PLR1714 mypy narrows only these
        return Verdict(state=checkpoint.written, why=checkpoint.written_why or "the lineage file says so")
    return None
