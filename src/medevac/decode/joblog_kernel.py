"""Kernel-log facts as clues: the same words as the signatures of job logs, joined by node and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from medevac.core.diagnose_case import Cause, Clue, Symptom
from medevac.core.events import FaultSeen
from medevac.decode.annotate import Annotation, Annotator
from medevac.decode.context import Context
from medevac.decode.joblog import whole_lines
from medevac.decode.joblog_record import Record
from medevac.decode.lines import decode_line

MEMORY = frozenset({48, 63, 64, 92, 94, 95, 140, 171, 172})
"""Xids that say that memory of the GPU was wrong (NVIDIA XID catalog)."""
SLACK = 300.0
"""Seconds before the start and after the end of a job in which a kernel line may still be its own."""
BY_KIND: dict[str, tuple[Cause, int]] = {
    "oom": ("out-of-memory", 90),
    "mlx5": ("network", 78),
    "ib_link": ("network", 78),
    "efa": ("network", 78),
    "disk": ("storage", 76),
    "nfs": ("storage", 76),
    "fabric_manager": ("system-software", 84),
    "peermem": ("system-software", 72),
}
SYMPTOMS: dict[str, Symptom] = {"nfs": "hang", "hung_task": "hang", "soft_lockup": "hang", "thermal": "slow"}


def kernel_clues(
    name: str, blocks: Iterable[bytes], *, record: Record | None = None, node: str = ""
) -> tuple[Clue, ...]:
    """The clues of one kernel log. With a record only those of the job's nodes and time count."""
    annotator, context = Annotator(), Context(node=node)
    found: dict[tuple[object, ...], Clue] = {}
    for line, fault in _faults(blocks, context):
        if record is not None and not _concerns(fault, record):
            continue
        clue = _clue(name, line, fault, annotator.annotate(fault))
        if clue is not None:
            found.setdefault((clue.signature, clue.node, clue.pci), clue)
    return tuple(found.values())


def _faults(blocks: Iterable[bytes], context: Context) -> Iterator[tuple[int, FaultSeen]]:
    number = 0
    for block in whole_lines(blocks):
        for raw in block.split(b"\n")[:-1]:
            number += 1
            if (fault := decode_line(raw, context)) is not None:
                yield number, fault


def _concerns(fault: FaultSeen, record: Record) -> bool:
    """The fault is on a node of the job, in its time; what is not known of either does not exclude it."""
    if record.nodes and fault.node and fault.node not in record.nodes:
        return False
    if not fault.at:
        return True
    before = record.started is not None and fault.at < record.started - SLACK
    after = record.ended is not None and fault.at > record.ended + SLACK
    return not (before or after)


def _clue(file: str, line: int, fault: FaultSeen, reading: Annotation) -> Clue | None:
    cause, weight = _weight(fault, reading)
    if cause is None and reading.severity == "info":
        return None
    memory = fault.kind == "xid" and fault.code in MEMORY
    code = "" if fault.code is None else f"-{fault.code}"
    return Clue(
        signature="kernel-memory-fault" if memory else f"kernel-{fault.kind}{code}",
        role="root" if cause else "symptom",
        symptom=SYMPTOMS.get(fault.kind, "crash"),
        names="gpu" if fault.pci else "node",
        cause=cause,
        weight=weight,
        file=file,
        line=line,
        text=fault.raw.strip()[:400] or reading.meaning,
        node=fault.node,
        pci=fault.pci or "",
        at=fault.at or None,
    )


def _weight(fault: FaultSeen, reading: Annotation) -> tuple[Cause | None, int]:
    """What the fact alone is evidence of. A GPU's own fault decides; what the application can cause does not."""
    if fault.kind in BY_KIND and reading.severity != "info":
        return BY_KIND[fault.kind]
    if fault.kind == "panic" and "machine check" in fault.raw.lower():
        return "hardware", 92
    if reading.blame not in ("gpu", "link", "node"):
        return None, 0
    return ("hardware", 95) if reading.severity == "critical" else (None, 0)
