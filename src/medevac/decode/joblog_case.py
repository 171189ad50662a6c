"""From logs to a case: scan each file, read its last progress, add what the kernel log and the scheduler say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from medevac.catalog.signatures import Signature
from medevac.core.diagnose_case import Case, Clue, ProgressSeen, Symptom
from medevac.core.progress_series import loss_jumped
from medevac.decode.joblog import JobLog, scan
from medevac.decode.progress_lines import Progress, ProgressReader

TAIL = 1 << 18
"""Bytes at the end of a log whose progress lines are read."""
GONE = 3
"""A training whose last reports, so many, have no finite loss does not come back."""


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """One log: what the signatures found, and its last progress."""

    file: str
    log: JobLog
    progress: ProgressSeen | None
    jumped: Clue | None


def read_log(
    file: str, blocks: Iterable[bytes], *, among: Sequence[Signature] | None = None, regex: str | None = None
) -> LogRead:
    """Read one log from blocks of bytes. Raises ValueError for a wrong progress regex."""
    tail = _Tail()
    log = scan(tail.watch(blocks), file=file, among=among)
    rows = list(_progress_rows(tail, log.lines, ProgressReader(regex)))
    main = _main_format(rows)
    return LogRead(file=file, log=log, progress=_last(file, main), jumped=_jump(file, main))


def build_case(logs: Iterable[LogRead], extra: Iterable[Clue] = ()) -> Case:
    """The case of all logs and of clues from other sources."""
    logs = tuple(logs)
    clues = [clue for one in logs for clue in one.log.clues]
    clues += [one.jumped for one in logs if one.jumped is not None]
    return Case(
        clues=(*clues, *extra),
        progress=tuple(one.progress for one in logs if one.progress is not None),
        ranks=frozenset(rank for one in logs for rank in one.log.ranks),
        last_line={one.file: one.log.lines for one in logs},
    )


class _Tail:
    """Remembers the last bytes of what flows through."""

    def __init__(self) -> None:
        self.bytes = b""

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.bytes = block[-TAIL:] if len(block) >= TAIL else (self.bytes + block)[-TAIL:]
            yield block


def _progress_rows(tail: _Tail, lines: int, reader: ProgressReader) -> Iterator[tuple[int, str, Progress]]:
    text = tail.bytes.decode("utf-8", "replace")
    rows = text.split("\n")
    first = lines - len(rows) + (2 if text.endswith("\n") else 1)
    for offset, row in enumerate(rows):
        for part in row.split("\r"):
            if part and (seen := reader.read(part)) is not None:
                yield first + offset, part, seen


def _main_format(rows: list[tuple[int, str, Progress]]) -> list[tuple[int, str, Progress]]:
    """The rows of the format that most lines have; of bars those of the longest."""
    if not rows:
        return []
    names = [seen.format for _, _, seen in rows]
    name = max(dict.fromkeys(names), key=names.count)
    longest = max(seen.total or 0 for _, _, seen in rows if seen.format == name)
    return [row for row in rows if row[2].format == name and (row[2].total or 0) == longest]


def _last(file: str, rows: list[tuple[int, str, Progress]]) -> ProgressSeen | None:
    if not rows:
        return None
    line, _, seen = rows[-1]
    since = rows[-3][0] if len(rows) >= 3 else 0
    return ProgressSeen(file=file, line=line, since=since, step=int(seen.step), total=seen.total)


def _jump(file: str, rows: list[tuple[int, str, Progress]]) -> Clue | None:
    """A loss that jumped, or that is no number any more."""
    losses = [(line, text, seen.loss) for line, text, seen in rows if seen.loss is not None]
    if len(losses) >= GONE and not any(math.isfinite(loss) for _, _, loss in losses[-GONE:]):
        line, text, _ = losses[-GONE]
        return _of_loss("loss-not-finite", file, line, text, "crash", 84)
    known = [(line, text, seen.loss) for line, text, seen in rows if seen.loss is not None and math.isfinite(seen.loss)]
    at = loss_jumped([loss for _, _, loss in known])
    if at is None:
        return None
    line, text, _ = known[at]
    return _of_loss("loss-jumped", file, line, text, "slow", 72)


def _of_loss(signature: str, file: str, line: int, text: str, symptom: Symptom, weight: int) -> Clue:
    return Clue(
        signature=signature,
        role="root",
        symptom=symptom,
        names="none",
        cause="numerical",
        weight=weight,
        file=file,
        line=line,
        text=text.strip()[:400],
    )
