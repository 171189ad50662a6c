"""A saved scheduler record as evidence: `scontrol show job` text, or `sacct -P` with a header line.

Both are brought into the form of `scontrol` (`JobState=NODE_FAIL Reason=...`), which the signatures know.
"""

from __future__ import annotations

import re

import msgspec

from medevac.core.diagnose_case import Clue
from medevac.decode.joblog import scan
from medevac.decode.progress_lines import stamp_of

NODES = re.compile(r"(?:^|[\s,])([A-Za-z][\w.-]*?)(?:\[([\d,-]+)\])?(?=$|[\s,])")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knows of the job. Times as the record prints them, read as UTC; None where unknown."""

    clues: tuple[Clue, ...] = ()
    nodes: frozenset[str] = frozenset()
    started: float | None = None
    ended: float | None = None


def read_record(name: str, text: str) -> Record:
    """Read a record. Raises ValueError where the text is neither of the two forms."""
    fields = _sacct(text) if "|" in text.partition("\n")[0] else _scontrol(text)
    if "JobState" not in fields:
        raise ValueError(f"{name}: neither `scontrol show job` nor `sacct -P` with a header line and State")
    shown = " ".join(f"{key}={fields[key]}" for key in ("JobState", "Reason", "ExitCode") if fields.get(key))
    started, ended = stamp_of(fields.get("StartTime", "")), stamp_of(fields.get("EndTime", ""))
    clues = scan([shown.encode() + b"\n"], file=name).clues
    return Record(
        clues=tuple(msgspec.structs.replace(clue, at=ended) for clue in clues),
        nodes=expand_nodes(fields.get("NodeList", "")),
        started=started,
        ended=ended,
    )


def expand_nodes(text: str) -> frozenset[str]:
    """`n[01-03,7],login1` as names; what cannot be read is left out."""
    names: set[str] = set()
    for match in NODES.finditer(text):
        base, ranges = match.groups()
        for part in (ranges or "").split(","):
            low, _, high = part.partition("-")
            if not low:
                names.add(base)
            elif int(high or low) - int(low) < 100_000:
                names |= {f"{base}{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)}
    return frozenset(names - {"None", "(null)"})


def _scontrol(text: str) -> dict[str, str]:
    """The first value of each key: the job's own, before those of its nodes."""
    fields: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)([A-Za-z]\w*)=(.*?)(?=\s+[A-Za-z][\w:/]*=|\s*$)", text, re.MULTILINE):
        fields.setdefault(key, value.strip())
    for key in ("StartTime", "EndTime"):
        fields[key] = fields.get(key, "").replace("T", " ")
    return fields


def _sacct(text: str) -> dict[str, str]:
    """The row of the job itself (its steps come after it); of several rows the one that failed worst."""
    head, *rows = [line.split("|") for line in text.splitlines() if "|" in line]
    names = [name.strip("# ") for name in head]
    records = [dict(zip(names, (value.strip("# ") for value in row), strict=False)) for row in rows]
    whole = [record for record in records if "." not in record.get("JobID", "")] or records
    if not whole:
        return {}
    chosen = max(whole, key=lambda record: record.get("State", "").startswith(TELLING))
    return {
        "JobState": chosen.get("State", ""),
        "Reason": chosen.get("Reason", ""),
        "ExitCode": chosen.get("ExitCode", ""),
        "NodeList": chosen.get("NodeList", ""),
        "StartTime": chosen.get("Start", "").replace("T", " "),
        "EndTime": chosen.get("End", "").replace("T", " "),
    }


TELLING = ("NODE_FAIL", "OUT_OF_ME", "TIMEOUT", "PREEMPTED", "DEADLINE", "BOOT_FAIL", "FAILED")
