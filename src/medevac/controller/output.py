"""What a job prints: its progress while it runs, and what its last lines say of its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from medevac.adapters.schedulers.local.files import Attempt
from medevac.adapters.sources.output import Parser, Printed
from medevac.core.diagnose_case import Clue
from medevac.core.events import AnyEvent, OutputRead, StepReported
from medevac.decode.joblog import scan
from medevac.decode.joblog_case import LogRead, build_case, read_log
from medevac.decode.progress_lines import Progress, ProgressReader, phase_of

TAIL = 4 << 20
"""Bytes at the end of each rank's output that are read when its attempt is over."""
MOST_CLUES = 64
MOST_ALARMS = 8
"""Lines of a running attempt that are told; what comes after them is read when it has ended."""
MOST_LOOKED = 2000
"""Lines of a running attempt that go through all signatures, 0.1 to 0.5 ms each: a flood must not hold the loop up."""
TROUBLE = (
    "error", "fail", "exception", "kill", "warn", "timed out", "timeout", "memory", "alloc", "lost", "fault", "fatal",
    "xid", "ecc", "nvlink", "space", "quota", "cancel", "abort", "refused", "denied", "oom", "terminat", "assert",
    "invalid", "signal", "evict", "preempt", "interrupt", "unreachable", "not found", "fell off", "no devices",
    "deadline", "crash", "pressure", "requires", "missing", "closed", "thermal", "unexpected", "no module",
)  # fmt: skip
"""What such a line must hold: a look at an ordinary line costs microseconds."""
EPOCH_SHARES = "hf-trainer"
MOST_CHARACTERS = 400


def progress_parser(regex: str | None, speaks: Callable[[], bool]) -> Parser:
    """Reports from progress lines, for a job that does not speak the in-job protocol (`speaks`).

    Raises ValueError for a regex that cannot be read or has no group `step`.
    """
    reader = ProgressReader(regex)

    spoke = False

    def parse(line: Printed) -> AnyEvent | None:
        nonlocal spoke
        spoke = spoke or speaks()
        if spoke:
            return None
        seen = reader.read(line.text)
        phase = None if seen else phase_of(line.text)
        if seen is None and phase is None:
            return None
        loss = seen.loss if seen else None
        return StepReported(
            at=line.seen_at,
            job=line.job,
            attempt=line.attempt,
            rank=line.rank,
            step=_step(seen) if seen else 0,
            phase=phase or "step",
            loss=loss if loss is not None and math.isfinite(loss) else None,
            finite=loss is None or math.isfinite(loss),
        )

    return parse


def output_parser(regex: str | None, speaks: Callable[[], bool], *, own_files: bool) -> Parser:
    """Progress as `progress_parser` reads it, and what may name the cause of a crash, as soon as it is printed.
    `own_files`: each rank prints into its own.
    """
    progress, alarm = progress_parser(regex, speaks), Alarm(own_files=own_files)
    return lambda line: progress(line) or alarm.read(line)


class Alarm:
    """The lines of the running attempt that a signature knows, told anew with each that names another cause or rank."""

    def __init__(self, *, own_files: bool) -> None:
        self._own_files = own_files
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._looked = self._lines = 0
        self._clues: tuple[Clue, ...] = ()
        self._told: set[tuple[str, int | None]] = set()

    def read(self, line: Printed) -> OutputRead | None:
        """One more line; what to tell, if anything."""
        if line.attempt != self._attempt:
            self._begin(line.attempt)
        if self._looked >= MOST_LOOKED or len(self._told) >= MOST_ALARMS or not troubled(line.text):
            return None
        self._looked += 1
        found = scan([line.text.encode() + b"\n"], file="output").clues
        if not found:
            return None
        self._lines += 1
        seen = tuple(self._placed(clue, line.rank) for clue in found)
        names = {(clue.signature, clue.rank) for clue in seen if clue.role == "root" and clue.symptom == "crash"}
        self._clues = (*self._clues, *seen)[-MOST_CLUES:]
        if names <= self._told:
            return None
        self._told |= names
        return OutputRead(at=line.seen_at, job=line.job, attempt=line.attempt, clues=self._clues, live=True)

    def _placed(self, clue: Clue, rank: int) -> Clue:
        speaker = rank if self._own_files and clue.rank is None else clue.rank
        text = clue.text[:MOST_CHARACTERS]
        return msgspec.structs.replace(clue, rank=speaker, line=self._lines, last=self._lines, text=text)


def troubled(text: str) -> bool:
    """The line holds a word of trouble."""
    lower = text.lower()
    for word in TROUBLE:  # noqa: SIM110 - `any` costs ten times as much, on every line that a job prints
        if word in lower:
            return True
    return False


def _step(seen: Progress) -> int:
    """Whole numbers; a format that counts shares of an epoch counts thousandths of one here."""
    return round(seen.step * 1000) if seen.format == EPOCH_SHARES else int(seen.step)


async def read_output(attempt: Attempt, job: str, number: int, regex: str | None) -> OutputRead:
    """What the ranks of an ended attempt printed last, through all signatures; an unreadable log says nothing."""
    return await asyncio.to_thread(_read, attempt, job, number, regex)


def _read(attempt: Attempt, job: str, number: int, regex: str | None) -> OutputRead:
    plan, ended = attempt.plan, attempt.ended
    nodes = {planned.place.rank: planned.place.node for planned in plan.ranks} if plan else {}
    logs = []
    for rank in sorted(nodes):
        path = attempt.log(rank)
        if path.is_file():
            logs.append((rank, read_log(f"rank{rank}.log", last_bytes(path), regex=regex)))
    return told(logs, job, number, nodes, ended.at if ended else 0.0)


def told(
    logs: Sequence[tuple[int | None, LogRead]], job: str, number: int, nodes: Mapping[int, str], at: float
) -> OutputRead:
    """The logs of an ended attempt as an event: each rank's own, or (None) one of all. `nodes`: where ranks ran."""
    case = build_case([log for _, log in logs])
    own = {log.file: rank for rank, log in logs}
    clues = []
    for clue in case.clues[:MOST_CLUES]:
        speaker = own.get(clue.file) if clue.rank is None and len(logs) > 1 else clue.rank
        node = clue.node or ("" if speaker is None else nodes.get(speaker, ""))
        clues.append(msgspec.structs.replace(clue, rank=speaker, node=node, text=clue.text[:MOST_CHARACTERS]))
    return OutputRead(
        at=at,
        id=f"{job}/{number}/output",
        source="output",
        job=job,
        attempt=number,
        clues=tuple(clues),
        ranks=tuple(sorted(nodes)),
    )


def last_bytes(path: Path, start: int = 0) -> Iterator[bytes]:
    """The end of a file, from `start` on, at most `TAIL` bytes; nothing of one that cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(size - TAIL, start))
            while block := stream.read(1 << 20):
                yield block
    except OSError:
        return
