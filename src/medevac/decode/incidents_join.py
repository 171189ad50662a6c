"""Which bursts have one cause: same part, same node after a lost GPU, one fabric, one process, "caused by".

One sweep in order of time; each rule looks only at the latest burst of its class, so the work grows with the number of
bursts and not with its square. Ties in time go by the order of reading, so the same input gives the same result.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from medevac.decode.annotate import NO_CAUSE
from medevac.decode.incidents_bursts import SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from medevac.decode.incidents_bursts import Burst

CRASH_S = 60.0
"""The same process on several nodes within this time is one crash."""
DAY_S = 86400.0
"""A GPU that needs a reset or a reboot stays the cause of its later faults, until the driver is loaded again."""

LOST, FAULTY, VICTIM = 0, 1, 8
NVLINK_CODES = frozenset({74, 136, 155, *range(144, 151)})
NVLINK5_CODES = frozenset(range(144, 151))
FABRIC_KINDS = frozenset({"sxid", "nvlink", "fabric_manager"})
GPU_KINDS = frozenset({"xid", "fell_off", "nvrm_other", "amdgpu"}) | FABRIC_KINDS
PCIE_KINDS = frozenset({"aer", "dpc", "pcie_slot"})
INIT_FAILED, RECOVERY = 143, 154
SMOOTHING_OFF, SMOOTHING_ON = 163, 162
APP_CAUSES = frozenset({6, 7, 8})


def join(bursts: Iterable[Burst], loads: Mapping[tuple[str, str], Sequence[float]]) -> list[list[Burst]]:
    """Groups of bursts with one cause, each in order of time, the groups by their first burst."""
    loud = sorted((burst for burst in bursts if not burst.quiet), key=lambda burst: (burst.domain, *burst.order))
    sweep = _Sweep({place: sorted(times) for place, times in loads.items()})
    for burst in loud:
        sweep.place(burst)
    sweep.join_copies(loud)
    groups: dict[int, list[Burst]] = {}
    for burst in loud:
        groups.setdefault(sweep.root(burst.index), []).append(burst)
    return sorted((sorted(group, key=lambda burst: burst.order) for group in groups.values()), key=_when)


def _when(group: Sequence[Burst]) -> tuple[bool, float, int]:
    return group[0].order


class _Sweep:
    """The latest burst of each class, and which bursts are one."""

    def __init__(self, loads: Mapping[tuple[str, str], Sequence[float]]) -> None:
        self._loads = loads
        self._parent: dict[int, int] = {}
        self._latest: dict[Hashable, Burst] = {}
        self._unsolved: dict[Hashable, Burst] = {}

    def root(self, index: int) -> int:
        """The burst that stands for all that are one with this."""
        path = []
        while (parent := self._parent.get(index, index)) != index:
            path.append(index)
            index = parent
        for step in path:
            self._parent[step] = index
        return index

    def _union(self, one: Burst, other: Burst) -> None:
        first, second = sorted((self.root(one.index), self.root(other.index)))
        if first != second:
            self._parent[second] = first

    def _with_latest(self, burst: Burst, key: Hashable, within: float) -> bool:
        other = self._latest.get(key)
        if other is None or burst.first - other.last > within:
            return False
        self._union(burst, other)
        return True

    def _remember(self, burst: Burst, key: Hashable) -> None:
        known = self._latest.get(key)
        if known is None or burst.last >= known.last:
            self._latest[key] = burst

    def place(self, burst: Burst) -> None:
        """Join one burst with what came before it, and remember it for those that come after."""
        here = (burst.domain, burst.place)
        self._same_part(burst, here)
        if burst.reading.cause >= NO_CAUSE:
            return
        if burst.kind in GPU_KINDS or burst.kind in PCIE_KINDS:
            self._lost_gpu(burst, here)
        if burst.kind in FABRIC_KINDS or (burst.kind == "xid" and burst.code in NVLINK_CODES):
            self._fabric(burst, here)
        if burst.kind == "xid" and burst.reading.cause == VICTIM:
            self._follows(burst, here)
        if burst.reading.cause in APP_CAUSES or burst.kind == "oom":
            self._process(burst, here)
        if burst.kind == "nvrm_other":
            self._driver(burst, here)
        if burst.kind == "xid" and burst.reading.cause < VICTIM:
            if burst.reading.severity != "info":
                self._remember(burst, ("cause", here))
            self._remember(burst, ("code", here, burst.code))
            self._remember(burst, ("code", burst.domain, burst.code))

    def _same_part(self, burst: Burst, here: tuple[str, str]) -> None:
        whole = burst.pci and burst.kind != "unread"
        key = ("part", here, burst.part) if whole else ("part", here, burst.part, burst.kind)
        if not self._with_latest(burst, key, SILENCE_S):
            self._still_unsolved(burst, key, here)
        self._remember(burst, key)
        cause = burst.reading.cause
        if burst.code == RECOVERY and burst.recovery.startswith("0x0"):
            self._unsolved.pop(key, None)
        elif (cause <= FAULTY and burst.reading.severity == "critical") or burst.code == SMOOTHING_OFF:
            self._unsolved[key] = burst
            self._unsolved["node", here] = burst

    def _still_unsolved(self, burst: Burst, key: Hashable, here: tuple[str, str]) -> None:
        """A fault that asked for a reset or a reboot has had none: what follows on the part follows from it."""
        old = self._unsolved.get(key)
        if old is None or burst.first - old.last > DAY_S:
            return
        if old.code == SMOOTHING_OFF or burst.code == SMOOTHING_ON:
            related = (old.code, burst.code) == (SMOOTHING_OFF, SMOOTHING_ON)
        elif burst.reading.cause == LOST:
            related = False  # a GPU that is lost once more was back in between
        else:
            failed_start = burst.code == INIT_FAILED or (burst.kind == "nvrm_other" and burst.pci is not None)
            related = failed_start or not self._loaded_between(here, old.last, burst.first)
        if related:
            self._union(burst, old)

    def _loaded_between(self, here: tuple[str, str], start: float, end: float) -> bool:
        times = self._loads.get(here, ())
        after = bisect_right(times, start)
        return after < len(times) and times[after] <= end

    def _lost_gpu(self, burst: Burst, here: tuple[str, str]) -> None:
        """Everything after a GPU fell off the bus, on its node; and the link and bus errors just before it."""
        if burst.reading.cause == LOST:
            self._with_latest(burst, ("lost", here), SILENCE_S)
            for seen in ("fabric", "pcie", "victim"):
                self._with_latest(burst, (seen, here), CRASH_S)
            self._remember(burst, ("lost", here))
        elif burst.reading.cause > FAULTY:
            self._with_latest(burst, ("lost", here), SILENCE_S)
        if burst.kind in PCIE_KINDS:
            self._remember(burst, ("pcie", here))

    def _driver(self, burst: Burst, here: tuple[str, str]) -> None:
        """The driver's plain messages often leave out which GPU they are about."""
        self._with_latest(burst, ("driver", here), SILENCE_S)
        if not burst.pci and not self._with_latest(burst, ("cause", here), SILENCE_S):
            self._still_unsolved(burst, ("node", here), here)
        self._remember(burst, ("driver", here))

    def _fabric(self, burst: Burst, here: tuple[str, str]) -> None:
        self._with_latest(burst, ("fabric", here), SILENCE_S)
        self._remember(burst, ("fabric", here))
        if burst.code in NVLINK5_CODES and burst.kind == "xid":  # one NVLink domain spans nodes
            self._with_latest(burst, ("nvlink5", burst.domain), CRASH_S)
            self._remember(burst, ("nvlink5", burst.domain))

    def _follows(self, burst: Burst, here: tuple[str, str]) -> None:
        """An Xid 45 follows the fault that it names, else the latest one on its node."""
        named = [code for code in sorted(burst.caused_by) if self._with_latest(burst, ("code", here, code), SILENCE_S)]
        if not named:
            for code in sorted(burst.caused_by):
                self._with_latest(burst, ("code", burst.domain, code), CRASH_S)
            if not burst.caused_by:
                self._with_latest(burst, ("cause", here), SILENCE_S)
        self._remember(burst, ("victim", here))

    def _process(self, burst: Burst, here: tuple[str, str]) -> None:
        for pid in sorted(burst.pids):
            self._with_latest(burst, ("pid", here, pid), SILENCE_S)
            self._remember(burst, ("pid", here, pid))
        if burst.kind != "xid":
            return
        for name in sorted(burst.processes) or [""]:
            self._with_latest(burst, ("process", burst.domain, name), CRASH_S)
            self._remember(burst, ("process", burst.domain, name))

    def join_copies(self, bursts: Iterable[Burst]) -> None:
        """A section without wall time that repeats lines of the same file is the latest such fact told again.

        The kernel's ring holds the running boot, the journals beside it in a report those before too.
        """
        dated: dict[Hashable, Burst] = {}
        undated = []
        for burst in bursts:
            key = (burst.file, burst.part, burst.kind, burst.code)
            if burst.domain:
                undated.append((key, burst))
            else:
                dated[key] = burst
        for key, burst in undated:
            other = dated.get(key)
            if other is not None:
                self._union(burst, other)
