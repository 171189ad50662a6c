"""Bursts: the same code on the same part, until it is silent for three minutes (15 s for Xid 13).

A log of any length becomes as many bursts as it has different facts times quiet spells; copies only raise a count.
Times are the log's own. A line without wall time is placed by its kernel seconds, comparable within its file only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from medevac.decode.xid import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Container

    from medevac.core.events import FaultSeen
    from medevac.decode.annotate import Annotation

SILENCE_S = 180.0
SILENCE_BY_CODE_S = {13: 15.0}
LOOK_BACK = 8
"""Bursts of one key that are tried before a new one begins: rotated files and repeated sections jump in time."""
KEPT_TEXTS = 4096
"""Different texts that a burst can tell apart."""
KEPT_TEXTS_IN_ALL = 100_000
"""With so many known, each burst can tell FEW apart: `distinct` says "at least"."""
KEPT_NAMES = 16
FEW = 8

_UPTIME = re.compile(r"\[ {0,8}(\d{1,12}\.\d{1,9})\]|^\d{1,4},\d{1,20},(\d{1,20}),")
_MARKS = {"xid": "Xid", "fell_off": "NVRM", "nvrm_other": "NVRM", "sxid": "SXid"}

NameT = TypeVar("NameT", int, str)
Key = tuple[str, str, str, str, int | None]


@dataclass(slots=True, eq=False)
class Burst:
    """`domain` is "" for wall time, else the file whose kernel seconds `first` and `last` are.

    `place` is the node, or the file where no line of it names one; `part` a PCI address, a device, or "".
    """

    index: int
    domain: str
    place: str
    part: str
    kind: str
    code: int | None
    node: str
    pci: str | None
    first: float
    last: float
    file: str
    line: int
    reading: Annotation
    gpu: str | None = None
    count: int = 0
    pids: tuple[int, ...] = ()
    processes: tuple[str, ...] = ()
    caused_by: tuple[int, ...] = ()
    told: tuple[int, ...] | set[int] = ()
    """What was said and when, each as text hash * 2**32 + second: what tells a copy from a repeat."""
    recovery: str = ""

    @property
    def quiet(self) -> bool:
        """No part of an incident: who a GPU is, a link that came up, an all-clear, a harmless switch message.

        An Xid always is one, harmless or not: a person asks about it.
        """
        return (
            self.reading.severity == "info" and self.kind != "xid" and (self.reading.cause >= 9 or self.kind == "sxid")
        )

    @property
    def order(self) -> tuple[bool, float, int]:
        """By wall time, then by kernel seconds alone, and as read where that is the same."""
        return self.domain != "", self.first, self.index


class Bursts:
    """Sorts events into bursts, one pass, in bounded memory."""

    def __init__(self) -> None:
        self.all: list[Burst] = []
        self.loads: dict[tuple[str, str], list[float]] = {}
        """When the driver was loaded, by domain and place: a GPU that needed a reset or reboot had one."""
        self.begun = 0
        """How many bursts there were so far."""
        self._by_key: dict[Key, list[Burst]] = {}
        self._texts = 0
        self._nodes: dict[str, str] = {}
        self._last: dict[str, float] = {}

    def add(self, fault: FaultSeen, reading: Annotation) -> Burst:
        """Count one event; gives the burst it belongs to."""
        domain, at = self._time(fault)
        place = self._place(fault)
        part = fault.pci or _device(fault)
        key = (domain, place, part, fault.kind, fault.code)
        burst = self._find(key, at)
        if burst is None:
            burst = self._begin(key, at, fault, reading)
        self._count(burst, fault, at, reading)
        return burst

    def forget(self, before: float) -> None:
        """Drop the bursts that ended before this time: for a log that is followed for ever."""
        self.drop({burst.index for burst in self.all if burst.last < before})
        self.loads = {
            place: kept for place, times in self.loads.items() if (kept := [time for time in times if time >= before])
        }

    def drop(self, indices: Container[int]) -> None:
        """Drop these bursts: a later event on their part begins another."""
        self.all = [burst for burst in self.all if burst.index not in indices]
        self._by_key.clear()
        self._texts = 0
        for burst in self.all:
            key = (burst.domain, burst.place, burst.part, burst.kind, burst.code)
            self._by_key.setdefault(key, []).append(burst)
            self._texts += len(burst.told)

    def _time(self, fault: FaultSeen) -> tuple[str, float]:
        if fault.at:
            return "", fault.at
        match = _UPTIME.search(fault.raw)
        at = self._last.get(fault.file, 0.0)
        if match is not None:
            at = float(match[1]) if match[1] else float(match[2]) / 1e6
        self._last[fault.file] = at
        return fault.file or "-", at

    def _place(self, fault: FaultSeen) -> str:
        if fault.node:
            self._nodes[fault.file] = fault.node
            return fault.node
        return self._nodes.get(fault.file) or fault.file

    def _find(self, key: Key, at: float) -> Burst | None:
        silence = SILENCE_BY_CODE_S.get(key[4] or 0, SILENCE_S) if key[3] == "xid" else SILENCE_S
        for burst in reversed(self._by_key.get(key, ())[-LOOK_BACK:]):
            if burst.first - silence <= at <= burst.last + silence:
                return burst
        return None

    def _begin(self, key: Key, at: float, fault: FaultSeen, reading: Annotation) -> Burst:
        domain, place, part, kind, code = key
        burst = Burst(
            index=self.begun,
            domain=domain,
            place=place,
            part=part,
            kind=kind,
            code=code,
            node=fault.node or self._nodes.get(fault.file, ""),
            pci=fault.pci,
            first=at,
            last=at,
            file=fault.file,
            line=fault.line,
            reading=reading,
        )
        self.begun += 1
        self.all.append(burst)
        self._by_key.setdefault(key, []).append(burst)
        return burst

    def _count(self, burst: Burst, fault: FaultSeen, at: float, reading: Annotation) -> None:
        burst.count += 1
        if at > burst.last:
            burst.last = at
        elif at < burst.first:
            burst.first, burst.file, burst.line = at, fault.file, fault.line
        if fault.gpu:
            burst.gpu = fault.gpu
        if fault.pid is not None:
            burst.pids = _with(burst.pids, fault.pid)
        if fault.process and fault.process != UNKNOWN:
            burst.processes = _with(burst.processes, fault.process)
        if reading is not burst.reading and _RANK[reading.severity] > _RANK[burst.reading.severity]:
            burst.reading = reading
        if len(burst.told) < (KEPT_TEXTS if self._texts < KEPT_TEXTS_IN_ALL else FEW):
            self._texts += _tell(burst, (hash(_words(fault)) << 32) + int(at))
        if fault.details:
            self._details(burst, fault, at)

    def _details(self, burst: Burst, fault: FaultSeen, at: float) -> None:
        details = fault.details
        caused_by = details.get("caused_by")
        if isinstance(caused_by, int):
            burst.caused_by = _with(burst.caused_by, caused_by)
        if burst.kind == "xid" and burst.code == 154 and at >= burst.last:
            burst.recovery = str(details.get("recovery_to", ""))
        elif burst.kind == "nvrm_info" and "driver" in details:
            self.loads.setdefault((burst.domain, burst.place), []).append(at)


_RANK = {"info": 0, "unknown": 1, "warning": 2, "critical": 3}


def _with(known: tuple[NameT, ...], name: NameT) -> tuple[NameT, ...]:
    """A few names, each once: a tuple takes a quarter of a set's memory, and most bursts are small."""
    if name in known or len(known) >= KEPT_NAMES:
        return known
    return known + (name,)  # noqa: RUF005 - mypy cannot type the unpacked form


def _tell(burst: Burst, what: int) -> bool:
    """Was it not told before?"""
    told = burst.told
    if what in told:
        return False
    if isinstance(told, set):
        told.add(what)
    else:
        burst.told = (*told, what) if len(told) < FEW else {*told, what}
    return True


def _device(fault: FaultSeen) -> str:
    return str(fault.details.get("device") or fault.details.get("server") or "")


def _words(fault: FaultSeen) -> str:
    """What a line says, without the prefix that its log put before it."""
    mark = _MARKS.get(fault.kind)
    if mark is None:
        return f"{fault.pid} {fault.details}"
    return fault.raw[fault.raw.find(mark) :]
