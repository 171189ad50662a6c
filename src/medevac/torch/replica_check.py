"""Do all replicas of the state still hold the same bits? If not: which tensor, which rank, and what kind of fault.

    guard = Guard(model, optimizer, checkpoint_dir=folder, checks=(ReplicaCheck(),))

Every `every` steps, and before each checkpoint, each rank hashes its parameters and optimizer state once
(`replica_hash`), and one MAX all-reduce of two int64 a replica group tells all ranks whether the highest hash is the
lowest. Only when it is not are hashes gathered tensor by tensor, and the majority says who is wrong. Then the steps
since the last clean checkpoint are done again (`replay`), checked one by one.
"""

from __future__ import annotations

import fnmatch
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from medevac.torch import replay
from medevac.torch.checks import Check, Finding, minority
from medevac.torch.place import Place
from medevac.torch.replay import Accused, Case, Strike
from medevac.torch.replica_hash import combined, hash_tensors, signed
from medevac.torch.replicas import Copy, Ranks, copies, unread

if TYPE_CHECKING:
    from medevac.torch.guard import Guard

log = logging.getLogger("medevac.torch")

EVERY = 100
"""A check took 18 % of a small transformer's step: 0.2 % at this interval (docs/silent-corruption.md)."""
LOWEST = -(1 << 63)
KEPT_BYTES = 256 << 20
"""Of tensors that differ, so much is kept to be compared with what the replay comes to."""
LEAST = 5e-324
FURTHER = 8.0
"""So many times further from the replay than the nearest replica is one that was wrong."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where replicas differ. `wrong`: by tensor, the ranks that stand against a majority. `missing`: tensors that some
    ranks do not have at all.
    """

    tensors: tuple[str, ...] = ()
    wrong: dict[int, tuple[str, ...]] = {}
    missing: tuple[str, ...] = ()


def localise(rows: Mapping[int, Mapping[str, int]]) -> Difference:
    """Compare the hashes of one replica group: rank, tensor, hash. Where no value has a majority nobody is wrong."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    missing = tuple(name for name in names if any(name not in row for row in rows.values()))
    ranks, tensors, wrong = sorted(rows), [], dict[int, list[str]]()
    for name in names:
        if len({row[name] for row in rows.values() if name in row}) == 1:
            continue
        tensors.append(name)
        if name not in missing:
            for at in minority([rows[rank][name] for rank in ranks]):
                wrong.setdefault(ranks[at], []).append(name)
    return Difference(tensors=tuple(tensors), wrong={r: tuple(names) for r, names in wrong.items()}, missing=missing)


class ReplicaCheck(Check):
    """See the module. `every`: steps between checks; `before_save`: one before each checkpoint, too. `leave_out`: name
    patterns (`fnmatch`) of what may differ between ranks. `group`: where plain tensors have copies, where it is not DDP
    that says so.
    """

    def __init__(
        self,
        every: int = EVERY,
        *,
        before_save: bool = True,
        leave_out: tuple[str, ...] = (),
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}: give 1 or more steps")
        self.every, self._at_save, self._group = every, before_save, group
        self._leave_out = set(leave_out)
        self.proven = 0
        """The last step after which all replicas were known to agree."""
        self._guard: Guard | None = None
        self._slots: dict[Ranks, int] = {}
        self._places: dict[int, Place] = {}
        self._file: replay.File | None = None
        self._members: Ranks = ()
        self._kept: dict[str, Tensor] = {}
        self._anchor: dict[str, Tensor] = {}
        """Where no majority names a rank: its tensors as they were when they differed, and when they last agreed."""
        self._checked = -1

    # --- when -------------------------------------------------------------------------------------------------------

    def attach(self, guard: Guard) -> None:
        self._guard = guard

    def restored(self, step: int) -> None:
        self.proven, self._checked = step, -1

    def end_step(self, done: int) -> Finding | None:
        return self._check(done) if done % self.every == 0 or self._case(done) else None

    def before_save(self, done: int) -> Finding | None:
        return self._check(done) if self._at_save and done != self._checked else None

    # --- comparing --------------------------------------------------------------------------------------------------

    def _check(self, done: int) -> Finding | None:
        guard = self._of()
        if guard.place.world == 1:
            return None
        self._checked = done
        found = [one for one in copies(guard.model, guard.optimizer, self._group) if self._compares(one.name)]
        if not self._places:
            self._meet(found)
        hashes = hash_tensors([one.tensor for one in found])
        apart = self._apart(found, hashes)
        own = {one.name: one for one in found}
        if not apart:
            return self._agreed(done, own)
        return self._differs(done, self._gather(found, hashes, apart), own)

    def _compares(self, name: str) -> bool:
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in self._leave_out)

    def _of(self) -> Guard:
        assert self._guard is not None, "give it to Guard(checks=...)"
        return self._guard

    def _meet(self, found: list[Copy]) -> None:
        """Once: who runs where, and which groups of ranks hold copies; each gets its place in the vector."""
        mine: tuple[Place, list[Ranks]] = (self._of().place, sorted({one.ranks for one in found}))
        gathered: list[Any] = [None] * self._of().place.world
        dist.all_gather_object(gathered, mine)
        self._places = {place.rank: place for place, _ in gathered}
        self._slots = {ranks: at for at, ranks in enumerate(sorted({one for _, groups in gathered for one in groups}))}
        if not self._slots and self._of().place.rank == 0:
            log.warning("no tensor has a copy on another rank: there is nothing that a replica check could compare")
        self._say_unread()

    def _say_unread(self) -> None:
        guard = self._of()
        names = tuple(filter(self._compares, unread(guard.model, guard.optimizer, self._group)))
        if names and guard.place.rank == 0:
            log.warning("no plain memory (sparse, quantized, a wrapper subclass), so not compared: %s", _some(names))

    def _apart(self, found: list[Copy], hashes: list[int]) -> tuple[int, ...]:
        """The groups whose replicas differ, known to all ranks: one all-reduce."""
        if not self._slots:
            return ()
        vector = torch.full((len(self._slots), 2), LOWEST, dtype=torch.int64)
        for ranks, at in self._slots.items():
            if self._of().place.rank in ranks:
                own = [value for one, value in zip(found, hashes, strict=True) if one.ranks == ranks]
                whole = signed(combined([len(own), *own]))
                vector[at, 0], vector[at, 1] = whole, ~whole
        vector = vector.to(_device())
        dist.all_reduce(vector, op=dist.ReduceOp.MAX)
        return tuple(at for at, (high, low) in enumerate(vector.tolist()) if high != ~low)

    def _gather(self, found: list[Copy], hashes: list[int], apart: tuple[int, ...]) -> Difference:
        """Tensor by tensor in the groups that differ."""
        mine: dict[int, dict[str, int]] = {}
        for one, value in zip(found, hashes, strict=True):
            if (at := self._slots.get(one.ranks, -1)) in apart:
                mine.setdefault(at, {})[one.name] = value
        gathered: list[Any] = [None] * self._of().place.world
        dist.all_gather_object(gathered, mine)
        members = {at: ranks for ranks, at in self._slots.items()}
        self._members = tuple(rank for at in apart for rank in members[at])
        parts = [localise({rank: gathered[rank].get(at, {}) for rank in members[at]}) for at in apart]
        return Difference(
            tensors=tuple(dict.fromkeys(name for part in parts for name in part.tensors)),
            wrong={rank: names for part in parts for rank, names in part.wrong.items()},
            missing=tuple(dict.fromkeys(name for part in parts for name in part.missing)),
        )

    # --- what it means ----------------------------------------------------------------------------------------------

    def _differs(self, done: int, found: Difference, own: Mapping[str, Copy]) -> Finding:
        if found.missing and not found.tensors:
            self._leave_out |= set(found.missing)
            return Finding(why=f"not on all replicas, so not compared: {_some(found.missing)}", want="warn")
        before = self._case(done)
        accused = tuple(self._accused(rank, names) for rank, names in sorted(found.wrong.items()))
        if not accused and before and _unnamed(before):
            accused = self._outlier(self._anchor, own)
        strike = Strike(
            step=done,
            proven=self.proven,
            attempt=self._of().client.attempt,
            accused=accused,
            tensors=found.tensors[:8],
        )
        case = replay.struck(before, strike)
        self._anchor, self._kept = {}, _copied(strike.tensors, own) if _unnamed(case) else {}
        self._settle(case)
        return Finding(
            why=_words(case, strike),
            want="roll-back" if case.outcome == "found" else "stop",
            ranks=tuple(one.rank for one in accused) if case.outcome in {"found", "again", "hardware"} else (),
            since=self.proven,
            state="condemned",
        )

    def _accused(self, rank: int, names: tuple[str, ...]) -> Accused:
        place = self._places[rank]
        return Accused(rank=rank, node=place.node, gpu=place.gpu, pci=place.pci, tensors=names[:8])

    def _agreed(self, done: int, own: Mapping[str, Copy]) -> Finding | None:
        self.proven = done
        case = self._case(done)
        if case is None:
            return None
        if done < case.step:
            self._anchor = _copied(case.strikes[0].tensors, own) if _unnamed(case) else {}
            return None
        if _unnamed(case):
            accused = self._outlier(self._kept, own)
            case = msgspec.structs.replace(case, accused=accused[0] if accused else None)
        case = replay.agreed(case, self._places)
        self._settle(case)
        return Finding(why=_words(case, case.strikes[-1]), want="warn")

    # --- naming without a majority ----------------------------------------------------------------------------------

    def _outlier(self, kept: Mapping[str, Tensor], now: Mapping[str, Copy]) -> tuple[Accused, ...]:
        """The one replica whose values are far from where the others' are near. On all ranks together."""
        off = {name: _distance(was, _local(now[name].tensor)) for name, was in kept.items() if name in now}
        gathered: list[Any] = [None] * self._of().place.world
        dist.all_gather_object(gathered, off)
        furthest = {rank: max(gathered[rank].values(), default=0.0) for rank in self._members}
        limit = FURTHER * min(furthest.values(), default=0.0)
        wrong = [rank for rank, distance in furthest.items() if distance > limit]
        if len(wrong) != 1:
            return ()
        names = tuple(name for name, distance in gathered[wrong[0]].items() if distance > limit)
        return (self._accused(wrong[0], names),)

    # --- the case ---------------------------------------------------------------------------------------------------

    def _case(self, done: int) -> Case | None:
        """The case that is open, on all ranks alike: rank 0 has read the file when it was first needed."""
        if self._file is None:
            guard = self._of()
            read: list[Any] = [replay.read(self._folder()) if guard.place.rank == 0 else None]
            if guard.place.world > 1:
                dist.broadcast_object_list(read, src=0)
            self._file = read[0]
        assert self._file is not None
        return self._file.open

    def _folder(self) -> Path | None:
        checkpoints = self._of().checkpoints
        return checkpoints.folder if checkpoints else None

    def _settle(self, case: Case) -> None:
        """Write down and tell how the case stands: rank 0 for all."""
        assert self._file is not None
        self._file.open = case if case.open else None
        if not case.open:
            self._file.closed.append(case)
        guard = self._of()
        if guard.place.rank:
            return
        with suppress(OSError):
            replay.write(self._folder(), self._file)
        blamed, strike = case.accused or Accused(rank=-1), case.strikes[-1]
        guard.client.corruption(
            case.outcome,
            step=strike.step,
            since=strike.proven,
            tensors=blamed.tensors or strike.tensors,
            rank=None if blamed.rank < 0 else blamed.rank,
            node=blamed.node,
            gpu=blamed.gpu,
            pci=blamed.pci,
        )


def _unnamed(case: Case) -> bool:
    return case.open and not any(strike.accused for strike in case.strikes)


def _copied(names: tuple[str, ...], own: Mapping[str, Copy]) -> dict[str, Tensor]:
    kept, room = {}, KEPT_BYTES
    for name in names:
        if name in own and (size := (local := _local(own[name].tensor)).nbytes) <= room:
            kept[name] = local.detach().to("cpu", copy=True)
            room -= size
    return kept


def _words(case: Case, strike: Strike) -> str:
    names = case.accused.tensors if case.accused and case.accused.tensors else strike.tensors
    what = f"replicas differed after step {strike.step} in {_some(names)}, not yet after step {strike.proven}"
    accused = ", ".join(f"rank {one.rank} ({one.part})" for one in strike.accused)
    who = f"rank {case.accused.rank} ({case.accused.part})" if case.accused else accused or "no rank can be named"
    meant = {
        "found": f"{accused or 'no majority, so no rank can be named yet'}; the steps are done again",
        "again": f"{who} is wrong again: its hardware is suspect",
        "transient": f"{who}; the replay agrees: a transient fault",
        "hardware": f"{who}; the steps came out well elsewhere: its hardware is at fault",
        "software": f"{who} is wrong wherever it runs: software, not hardware",
        "unclear": "not the same rank again: unclear, no hardware is blamed",
    }
    return f"{what}: {meant[case.outcome]}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _distance(was: Tensor, now: Tensor) -> float:
    """The largest difference of an element; infinite where one of them is no number, 0 only for the same bits."""
    if hash_tensors([was]) == hash_tensors([now]):
        return 0.0
    apart = (was.double() - now.detach().cpu().double()).abs()
    return float(apart.nan_to_num(nan=math.inf, posinf=math.inf).max()) or LEAST


def _device() -> torch.device:
    """Where the default group reduces."""
    return torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
