"""What a group of bursts amounts to: root, blame, what to do now and after, does the job die, whose business it is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec

from medevac.catalog.schema import Audience, Blame, Severity
from medevac.decode.incidents_join import LOST, SMOOTHING_OFF, SMOOTHING_ON, VICTIM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from medevac.catalog.load import Catalog
    from medevac.decode.incidents_bursts import Burst

Role = Literal["root", "victim", "alone"]
Place = tuple[str, int | None, str, str | None]

SEVERITIES: tuple[Severity, ...] = ("info", "unknown", "warning", "critical")
ECC, REMAPPED, REMAP_FAILED, RECOVERY = 48, 63, 64, 154
SOMETIMES_HARDWARE = frozenset({13, 31})
REPEATS_TO_BLAME_HARDWARE = 3
PLACES_AT_MOST = 100_000


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The first fact of the cause, and where it stands."""

    kind: str
    code: int | None
    node: str | None
    pci: str | None
    file: str
    line: int


class Blamed(msgspec.Struct, frozen=True, kw_only=True):
    """The part to look at. `job`: the program itself; `unknown`: the log does not say."""

    kind: Blame
    node: str | None = None
    pci: str | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of event on one part: how many lines said so, and how many different ones those were."""

    kind: str
    code: int | None
    node: str | None
    pci: str | None
    count: int
    distinct: int
    role: Role


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs together and why. Times are unix seconds, None where the log has no wall time."""

    incident: str
    first: float | None
    last: float | None
    nodes: tuple[str, ...]
    root: Root | None
    blame: Blamed
    facts: tuple[Fact, ...]
    severity: Severity
    meaning: str
    action_now: str
    action_after: str
    kills_job: bool | None
    audience: Audience
    repeats: int = 0
    """Earlier incidents with the same root on the same part."""


class Story(msgspec.Struct, kw_only=True):
    """An incident in the making: its bursts and what was found out about them."""

    bursts: list[Burst]
    root: Burst | None
    incident: Incident

    def role(self, burst: Burst) -> Role:
        """Of one burst of it."""
        return _role(_place(burst), self.root, alone=len(self.incident.facts) == 1)


class Earlier:
    """What came before on each place: how often, and of a program's faults by how many programs (known by their pids).

    Bounded: after PLACES_AT_MOST places it begins anew.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._programs: dict[int, set[tuple[int, ...]]] = {}

    def count(self, root: Burst) -> int:
        """One more with this root; gives how many there were before."""
        if len(self._times) >= PLACES_AT_MOST:
            self._times.clear()
            self._programs.clear()
        place = hash(_place(root))
        times = self._times.get(place, 0)
        self._times[place] = times + 1
        if root.code in SOMETIMES_HARDWARE and root.pids:
            programs = self._programs.setdefault(place, set())
            if len(programs) < REPEATS_TO_BLAME_HARDWARE:
                programs.add(tuple(sorted(root.pids)))
        return times

    def programs(self, root: Burst) -> int:
        """How many programs had a fault with this root so far, up to REPEATS_TO_BLAME_HARDWARE."""
        return len(self._programs.get(hash(_place(root)), ()))


def tell(groups: Iterable[list[Burst]], catalog: Catalog, earlier: Earlier | None = None) -> Iterator[Story]:
    """The stories of groups that are in order of time; those on one part know of each other, and of `earlier` ones."""
    seen = earlier or Earlier()
    for group in groups:
        story = _story(group, catalog)
        if story.root is not None:
            story.incident = _repeated(story.incident, story.root, seen)
        yield story


def _story(group: list[Burst], catalog: Catalog) -> Story:
    root = find_root(group)
    facts = _facts(group, root)
    blame = find_blame(group, root)
    now, after = actions(group, root, blame, catalog)
    asking = None if root is None else _reset_for_a_program(group, root)
    first = group[0]
    dated = [burst for burst in group if not burst.domain]
    nodes = tuple(sorted({burst.node for burst in group if burst.node}))
    return Story(
        bursts=group,
        root=root,
        incident=Incident(
            incident=identity(first),
            first=min((burst.first for burst in dated), default=None),
            last=max((burst.last for burst in dated), default=None),
            nodes=nodes,
            root=None if root is None else _root(root),
            blame=blame,
            facts=facts,
            severity=_severity(group),
            meaning=(asking or root or first).reading.meaning,
            action_now=now,
            action_after=after,
            kills_job=_kills_job(group),
            audience="operator" if asking else _audience(blame, now, (root or first).reading.audience),
        ),
    )


def _audience(blame: Blamed, now: str, usual: Audience) -> Audience:
    """Whose business it is; a reset or reboot that the driver asks for is nothing that a job's owner can do."""
    if blame.kind != "job":
        return usual
    return "operator" if now != "IGNORE" and now in RECOVERY_ACTIONS.values() else "tenant"


def identity(first: Burst) -> str:
    """Eight hex digits that only depend on the first fact of the incident."""
    words = (first.domain, first.place, first.part, first.kind, first.code, int(first.first))
    return hashlib.blake2s(repr(words).encode(), digest_size=4).hexdigest()


def roles(group: Sequence[Burst]) -> tuple[str, list[Role]]:
    """The identity of a group's incident and the role of each of its bursts, without the rest of the story."""
    root, places = find_root(group), [_place(burst) for burst in group]
    alone = places.count(places[0]) == len(places)
    return identity(group[0]), [_role(place, root, alone=alone) for place in places]


def find_root(group: Sequence[Burst]) -> Burst | None:
    """The earliest fact among those nearest to a cause; None where all that is left are victims (Xid 45)."""
    root = min(group, key=lambda burst: (burst.reading.cause, burst.pci is None, *burst.order))
    return None if root.reading.cause == VICTIM else root


def _root(burst: Burst) -> Root:
    return Root(
        kind=burst.kind,
        code=burst.code,
        node=burst.node or None,
        pci=burst.pci,
        file=burst.file,
        line=burst.line,
    )


def find_blame(group: Sequence[Burst], root: Burst | None) -> Blamed:
    """The root's part; the node where several of its GPUs fell off at once; nobody's hardware for a job's crash.

    A GPU that the driver wants reset after a program's fault is itself to be looked at: that word outranks the table.
    """
    nodes = {burst.place for burst in group}
    if root is None:
        return Blamed(kind="job" if len(nodes) > 1 else "unknown")
    node = root.node or None
    lost = {burst.part for burst in group if burst.reading.cause == LOST and burst.place == root.place}
    if len(lost) > 1:
        return Blamed(kind="node", node=node)
    kind: Blame = "gpu" if _reset_for_a_program(group, root) else root.reading.blame
    if kind in {"gpu", "link"} and root.pci is not None:
        return Blamed(kind=kind, node=node, pci=root.pci)
    if kind in {"gpu", "link", "node"}:
        return Blamed(kind="node", node=node)
    return Blamed(kind=kind)


def actions(group: Sequence[Burst], root: Burst | None, blame: Blamed, catalog: Catalog) -> tuple[str, str]:
    """What to do now and after, by the names of buckets.toml."""
    if root is None:
        return ("RESTART_APP", "CHECK_APP/CUDA") if blame.kind == "job" else ("RESTART_FM", "WORKFLOW_XID_45")
    now, after = root.reading.now, root.reading.after
    codes = {burst.code for burst in group if burst.kind == "xid" and burst.place == root.place}
    if root.code == SMOOTHING_OFF and _cancelled(group):
        return "IGNORE", after
    if now == "WORKFLOW_XID_48":
        now, after = _double_bit(codes)
    if now == "WORKFLOW_XID_45":
        now = "RESTART_FM"
    if now == "CHECK_NVLINK_FAILURE_FLOW":
        now = "RESTART_APP"
    asked = _recovery_action(group, root)
    if now == "XID_154_EVAL":
        now = asked or "RESTART_APP"
    elif asked and root.reading.cause <= LOST:  # a lost GPU cannot be reset in band, whatever the driver asks
        now = max(now, asked, key=lambda name: _rank(catalog, name))
    elif asked:
        now = asked
    return now, after


def _double_bit(codes: set[int | None]) -> tuple[str, str]:
    """Xid 48 alone: reset, then field diagnostics; with 63 or 64: drain, then reset, and go on as those say."""
    if REMAP_FAILED in codes:
        return "DRAIN_AND_RESET", "CONTACT_SUPPORT"
    if REMAPPED in codes:
        return "DRAIN_AND_RESET", "IGNORE"
    return "RESET_GPU", "RUN_FIELDDIAG"


def _recovery_action(group: Sequence[Burst], root: Burst) -> str | None:
    """What the last Xid 154 of the root's node asks for; None without one, or where it asks for the unknown."""
    last = _last_recovery(group, root)
    return None if last is None else _by_recovery(last.recovery)


def _last_recovery(group: Sequence[Burst], root: Burst) -> Burst | None:
    """The last Xid 154 of the root's part, else of its node."""
    asked = [burst for burst in group if burst.code == RECOVERY and burst.recovery and burst.place == root.place]
    same = [burst for burst in asked if burst.part == root.part] or asked
    return max(same, key=lambda burst: (burst.last, burst.index), default=None)


def _reset_for_a_program(group: Sequence[Burst], root: Burst) -> Burst | None:
    """The Xid 154 that asks for a reset or reboot of the very GPU on which a program's fault is the root."""
    if root.kind != "xid" or root.reading.blame != "job" or root.pci is None:
        return None
    last = _last_recovery(group, root)
    return last if last and last.part == root.part and _by_recovery(last.recovery) in RESETS else None


RECOVERY_ACTIONS = {
    0: "IGNORE",
    1: "RESET_GPU",
    2: "RESTART_BM",
    3: "DRAIN_P2P",
    4: "DRAIN_AND_RESET",
    5: "RECOVER_IMEX_DOMAIN",
    6: "BUS_RESET",
    7: "RESTART_BM",
}
"""Values of the driver's recovery action (NVML field 230; 6 and 7 in NVML only); their order is not one of severity."""
RESETS = frozenset({"RESET_GPU", "RESTART_BM", "DRAIN_AND_RESET", "BUS_RESET"})


def _by_recovery(text: str) -> str | None:
    try:
        return RECOVERY_ACTIONS.get(int(text.split(maxsplit=1)[0], 16))
    except (ValueError, IndexError):
        return None


def _rank(catalog: Catalog, name: str) -> int:
    bucket = catalog.buckets.get(name)
    return bucket.rank or 0 if bucket else 0


def _cancelled(group: Sequence[Burst]) -> bool:
    """Xid 162 after the last 163: the power-smoothing circuit is back."""
    on = [burst.last for burst in group if burst.code == SMOOTHING_ON]
    off = [burst.last for burst in group if burst.code == SMOOTHING_OFF]
    return bool(on and off) and max(on) >= max(off)


def _severity(group: Sequence[Burst]) -> Severity:
    """The worst; a switched-off circuit that came back does not count."""
    if len(group) == 1:
        return group[0].reading.severity
    cancelled = _cancelled(group)
    found = (b.reading.severity for b in group if not (cancelled and b.code == SMOOTHING_OFF))
    return max(found, key=SEVERITIES.index)


def _kills_job(group: Sequence[Burst]) -> bool | None:
    said = {burst.reading.kills_job for burst in group}
    return True if True in said else None if None in said else False


def _place(burst: Burst) -> Place:
    return burst.kind, burst.code, burst.place, burst.pci


def _role(place: Place, root: Burst | None, *, alone: bool) -> Role:
    if alone:
        return "alone"
    return "root" if root is not None and place == _place(root) else "victim"


def _facts(group: Sequence[Burst], root: Burst | None) -> tuple[Fact, ...]:
    by_place: dict[Place, list[Burst]] = {}
    for burst in group:
        by_place.setdefault(_place(burst), []).append(burst)
    return tuple(
        Fact(
            kind=place[0],
            code=place[1],
            node=bursts[0].node or None,
            pci=place[3],
            count=sum(burst.count for burst in bursts),
            distinct=_distinct(bursts),
            role=_role(place, root, alone=len(by_place) == 1),
        )
        for place, bursts in by_place.items()
    )


def _distinct(bursts: Sequence[Burst]) -> int:
    """Different texts at different seconds; a text without wall time counts where no dated line has it."""
    if len(bursts) == 1:
        return len(bursts[0].told)
    dated = {what for burst in bursts if not burst.domain for what in burst.told}
    texts = {what >> 32 for what in dated}
    undated = {what for burst in bursts if burst.domain for what in burst.told}
    return len(dated) + sum(1 for what in undated if what >> 32 not in texts)


def _repeated(incident: Incident, root: Burst, seen: Earlier) -> Incident:
    """Count the repeats; a program's fault that comes back on one GPU with other programs points at the GPU."""
    if repeats := seen.count(root):
        incident = msgspec.structs.replace(incident, repeats=repeats)
    if incident.blame.kind != "job" or root.code not in SOMETIMES_HARDWARE or root.pci is None:
        return incident
    if seen.programs(root) < REPEATS_TO_BLAME_HARDWARE:
        return incident
    blame = Blamed(kind="gpu", node=root.node or None, pci=root.pci)
    return msgspec.structs.replace(incident, blame=blame, audience="operator", action_after="RUN_FIELDDIAG")
