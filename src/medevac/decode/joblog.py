"""One pass over a job log: all signatures at once, each match as a clue with its line, rank and node.

A log is bytes of any size, read in blocks. A line ends with a newline or a carriage return (progress bars); line
numbers count newlines, as editors do. Colour codes are taken out before anything is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from medevac.catalog.signatures import Signature, signatures
from medevac.core.diagnose_case import Clue
from medevac.decode.joblog_find import Finder, finder
from medevac.decode.joblog_prefix import Speaker, speaker, without_colours

KEEP = 40
"""How many clues of one signature are kept in full; the rest is counted."""
LONGEST = 4096
"""Characters of one line that are looked at; longer ones are cut."""

HEDGE = re.compile(
    r"\b(?:may|might|could|can) (?:also )?(?:be|have been|indicate|mean|cause|occur|happen)\b"
    r"|\bpossibl[ey] (?:reasons?|causes?|due)\b|\b(?:likely|usually|typically|often|probably) (?:caused|due|because)\b"
    r"|\bmake sure\b|\bplease (?:check|see|try)\b|\bconsider (?:setting|passing|using)\b|\bif you (?:see|are|want)\b",
    re.IGNORECASE,
)
"""Advice: what follows such words on a line is somebody's guess, never evidence."""

CALM = re.compile(r"\bNCCL INFO\b|(?<!NCCL )\b(?:DEBUG|INFO|WARN|WARNING|Warning)\b(?=[\]:| ])|^\[?[WI](?:\d{4})? ")
"""A level that no bug of the job is logged at: optional imports and files that a library tries are."""

STEP_FIELDS = frozenset({"rank", "rank2", "node", "gpu", "pci", "peer"})


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan found: clues in the order of the file, the ranks that spoke, how many lines there are."""

    clues: tuple[Clue, ...]
    ranks: frozenset[int]
    lines: int


def scan(blocks: Iterable[bytes], *, file: str = "", among: Sequence[Signature] | None = None) -> JobLog:
    """Scan a log given as blocks of bytes of any size."""
    known = signatures() if among is None else tuple(among)
    collected = _Collected(file)
    finding = finder(known)
    base = 0
    for block in whole_lines(blocks):
        _scan_block(block, base, finding, collected)
        base += block.count(b"\n")
    return JobLog(clues=collected.clues(), ranks=frozenset(collected.ranks), lines=base)


def whole_lines(blocks: Iterable[bytes], longest: int = 1 << 22) -> Iterator[bytes]:
    """The same bytes in blocks that end where a line ends; a line longer than `longest` bytes is cut there."""
    rest = b""
    for block in blocks:
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > longest:
            yield rest
            rest = b""
    if rest:
        yield rest + b"\n"


class _Collected:
    """Clues so far; the same part saying the same again is one clue with a count."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.ranks: set[int] = set()
        self._found: dict[tuple[object, ...], Clue] = {}
        self._counts: dict[str, int] = {}

    def add(self, clue: Clue) -> None:
        key = (clue.signature, clue.rank, clue.node, clue.peer, clue.pci)
        before = self._found.get(key)
        if before is not None:
            self._found[key] = msgspec.structs.replace(before, count=before.count + 1, last=clue.line)
            return
        kept = self._counts.get(clue.signature, 0)
        if kept < KEEP:
            self._counts[clue.signature] = kept + 1
            self._found[key] = clue

    def clues(self) -> tuple[Clue, ...]:
        return tuple(sorted(self._found.values(), key=lambda clue: clue.line))


def _scan_block(block: bytes, base: int, finding: Finder, collected: _Collected) -> None:
    if b"\x1b" in block:
        block = without_colours(block)
    line, seen_to = base + 1, 0
    for start, end, among in finding.hits(block):
        line += block.count(b"\n", seen_to, start)
        seen_to = start
        text = block[start : min(end, start + LONGEST)].decode("utf-8", "replace")
        _read_line(text, line, among, collected)


def _read_line(text: str, line: int, among: Iterable[Signature], collected: _Collected) -> None:
    spoken: Speaker | None = None
    for one in among:
        if not one.regex.search(text) and not one.pattern.startswith("^"):
            continue
        spoken = spoken or speaker(text)
        match = one.regex.search(spoken.text)
        if match is None or (one.cause is not None and _is_advice(one, match)):
            continue
        clue = _clue(one, match, spoken, collected.file, line)
        if clue.rank is not None:
            collected.ranks.add(clue.rank)
        collected.add(clue)


def _is_advice(one: Signature, match: re.Match[str]) -> bool:
    """The match stands behind hedging words (before them a library knows), or a bug behind a calm level."""
    hedge = HEDGE.search(match.string)
    if hedge is not None and match.start() >= hedge.start():
        return True
    return one.cause == "user-code" and CALM.search(match.string, 0, match.start() + 1) is not None


def _clue(one: Signature, match: re.Match[str], spoken: Speaker, file: str, line: int) -> Clue:
    groups = {name: value for name, value in match.groupdict().items() if value is not None}
    rank = groups.get("rank") or groups.get("rank2")
    return Clue(
        signature=one.id,
        role=one.role,
        symptom=one.symptom,
        names=one.names,
        cause=one.cause,
        weight=one.weight,
        file=file,
        line=line,
        last=line,
        text=spoken.text.strip()[:400],
        rank=int(rank) if rank is not None and rank.isdecimal() else spoken.rank,
        node=groups.get("node", spoken.node),
        gpu=int(groups["gpu"]) if groups.get("gpu", "").isdecimal() else None,
        pci=groups.get("pci", ""),
        peer=groups.get("peer", ""),
        fields={name: value for name, value in groups.items() if name not in STEP_FIELDS},
    )
