"""The incidents of a log of any length in bounded memory: what is over is told while the log is still read.

    with Told() as told:
        for fault in decode_files(paths):
            told.add(fault)
        told.finish()
        for incident in told: ...

Up to AT_ONCE bursts are held; then those of incidents that nothing can join any more are told, and wait on disk. Where
that is not enough, because so many different faults came within a day, an incident is told before all of it is known:
what comes later on its parts is another incident.
"""

from __future__ import annotations

import heapq
import os
import tempfile
from array import array
from typing import TYPE_CHECKING, Self

import msgspec

from medevac.decode.incidents import FOLLOWED_S, Incidents
from medevac.decode.incidents_bursts import SILENCE_S
from medevac.decode.incidents_join import join
from medevac.decode.incidents_story import Earlier, Incident, Role, roles, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import IO

    from medevac.core.events import FaultSeen
    from medevac.decode.annotate import Annotation
    from medevac.decode.incidents_bursts import Burst

AT_ONCE = 30_000
Entry = tuple[tuple[bool, float, int], Incident]
"""An incident behind what it is sorted by: the order of its first burst."""
ROLES: tuple[Role, ...] = ("alone", "root", "victim")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class Members:
    """Which incident each burst belongs to, and its role there; five bytes a burst."""

    def __init__(self) -> None:
        self._incidents = array("I")
        self._roles = bytearray()

    def put(self, index: int, incident: str, role: Role) -> None:
        """Burst `index` belongs to `incident` (eight hex digits)."""
        missing = index + 1 - len(self._roles)
        if missing > 0:
            self._roles.extend(bytes(missing))
            self._incidents.extend([0] * missing)
        self._incidents[index] = int(incident, 16)
        self._roles[index] = 1 + ROLES.index(role)

    def get(self, index: int) -> tuple[str, Role] | None:
        """Incident and role of a burst; None for one that is no part of any."""
        role = self._roles[index] if index < len(self._roles) else 0
        return (f"{self._incidents[index]:08x}", ROLES[role - 1]) if role else None


class Told:
    """A context manager: what waits on disk is gone when it is left.

    `count` incidents are kept, those that are to be `shown`; `members` knows of all. With `members_only` it is told
    who is a member of what, and of incidents only the first.
    """

    def __init__(
        self,
        shown: Callable[[Incident], bool] = lambda _: True,
        *,
        members_only: bool = False,
        at_once: int = AT_ONCE,
    ) -> None:
        self._collected = Incidents()
        self.catalog = self._collected.annotator.catalog
        self.members = Members()
        self.count = 0
        self._shown = shown
        self._members_only = members_only
        self._at_once = at_once
        self._earlier = Earlier()
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        self._rest: list[Entry] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, fault: FaultSeen) -> tuple[Annotation, Burst]:
        """Take one event; gives its reading and the burst that it is counted in."""
        if len(self._collected.bursts.all) >= self._at_once:
            self._settle()
        return self._collected.add(fault)

    def finish(self) -> None:
        """No event follows."""
        bursts = self._collected.bursts
        self._rest = list(self._tell(join(bursts.all, bursts.loads)))

    def __iter__(self) -> Iterator[Incident]:
        """The incidents in order of time, once all events are in; as often as asked."""
        runs = [] if self._file is None else [_read(self._file, *run) for run in self._runs]
        for _, incident in heapq.merge(*runs, self._rest, key=_order):
            yield incident

    def _settle(self) -> None:
        """Tell at least a quarter of the bursts, those whose incidents are most surely over."""
        bursts = self._collected.bursts
        groups = join(bursts.all, bursts.loads)
        newest: dict[str, float] = {}
        for burst in bursts.all:
            newest[burst.domain] = max(burst.last, newest.get(burst.domain, burst.last))
        middle = bursts.all[len(bursts.all) // 2].index

        def past(burst: Burst) -> bool:
            return burst.last < newest[burst.domain] - FOLLOWED_S

        def silent(burst: Burst) -> bool:
            return first_half(burst) and burst.last < newest[burst.domain] - SILENCE_S

        def first_half(burst: Burst) -> bool:
            return burst.index < middle

        over: list[list[Burst]] = []
        gone: set[int] = set()
        for choose, done in ((_whole, past), (_whole, silent), (_parts, silent), (_parts, first_half)):
            over = choose(groups, done)
            gone = {burst.index for group in over for burst in group}
            gone.update(burst.index for burst in bursts.all if burst.quiet and done(burst))
            if len(gone) >= len(bursts.all) // 4:
                break
        self._write(over)
        bursts.drop(gone)

    def _write(self, groups: Iterable[list[Burst]]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="medevac-decode-")  # noqa: SIM115 - closed by __exit__
        start = self._file.tell()
        for entry in self._tell(groups):
            body = _encode(entry)
            self._file.write(len(body).to_bytes(4, "little") + body)
        self._file.flush()
        self._runs.append((start, self._file.tell()))

    def _tell(self, groups: Iterable[list[Burst]]) -> Iterator[Entry]:
        return (entry for group in groups if (entry := self._entry(group)))

    def _entry(self, group: list[Burst]) -> Entry | None:
        if self._members_only and self.count:
            self._join(group, *roles(group))
            return None
        (story,) = tell([group], self.catalog, self._earlier)
        self._join(group, story.incident.incident, map(story.role, group))
        if not self._shown(story.incident):
            return None
        self.count += 1
        return group[0].order, story.incident

    def _join(self, group: list[Burst], incident: str, roles_of_each: Iterable[Role]) -> None:
        for burst, role in zip(group, roles_of_each, strict=True):
            self.members.put(burst.index, incident, role)


def _whole(groups: Iterable[list[Burst]], done: Callable[[Burst], bool]) -> list[list[Burst]]:
    """The groups of which all bursts are done."""
    return [group for group in groups if all(map(done, group))]


def _parts(groups: Iterable[list[Burst]], done: Callable[[Burst], bool]) -> list[list[Burst]]:
    """Of each group the bursts that are done."""
    return [part for group in groups if (part := [burst for burst in group if done(burst)])]


def _order(entry: Entry) -> tuple[bool, float, int]:
    return entry[0]


def _read(file: IO[bytes], at: int, stop: int) -> Iterator[Entry]:
    """The entries of a run, each when it is wanted: there may be thousands of runs."""
    while at < stop:
        size = int.from_bytes(os.pread(file.fileno(), 4, at), "little")
        yield _decode(os.pread(file.fileno(), size, at + 4))
        at += 4 + size
