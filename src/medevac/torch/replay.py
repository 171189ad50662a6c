"""What a difference between replicas was: told by doing the steps again, on the same rank and then on another part.

    first difference            back to the last clean checkpoint, the same steps once more in place
    it agrees then              transient: nothing is isolated
    the same rank is wrong      its hardware is suspect: it leaves (84), and a supervisor gives its rank another part
      and right elsewhere       hardware: the part that was left is isolated
      and wrong there too       software: wrong wherever it runs, no hardware is blamed
    another rank on that part   hardware: the fault stayed with the part
    anything else               unclear: nobody is blamed

The open case is kept beside the checkpoints, so that the next attempt goes on with it. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from medevac.core.events import Corruption
from medevac.torch.place import Place
from medevac.torch.saver import leave

FILE = "medevac-replay.json"
KEPT = 100
"""Closed cases that stay in the file."""


class Accused(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that was alone with its values, where it ran, and in which tensors."""

    rank: int
    node: str = ""
    gpu: str = ""
    pci: str = ""
    tensors: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        return self.gpu or self.node


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One difference: found after `step` steps, the replicas last agreed after `proven`."""

    step: int
    proven: int
    attempt: int = 0
    accused: tuple[Accused, ...] = ()
    tensors: tuple[str, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Differences that are looked into together, and what they came to; `part` is what is to blame."""

    strikes: tuple[Strike, ...] = ()
    outcome: Corruption = "found"
    accused: Accused | None = None

    @property
    def step(self) -> int:
        """So far the steps are done again."""
        return max((strike.step for strike in self.strikes), default=0)

    @property
    def open(self) -> bool:
        return self.outcome in {"found", "again"}


class File(msgspec.Struct, kw_only=True):
    """What stands in `medevac-replay.json`: the case that is open, and earlier ones."""

    open: Case | None = None
    closed: list[Case] = []
    schema: Literal[1] = 1


def struck(case: Case | None, strike: Strike) -> Case:
    """The case with one more difference, and what that says."""
    if case is None:
        return Case(strikes=(strike,), accused=strike.accused[0] if len(strike.accused) == 1 else None)
    case = Case(strikes=(*case.strikes, strike), outcome="unclear")
    named = [{one.rank: one for one in each.accused} for each in case.strikes if each.accused]
    if not strike.accused:
        return case
    for rank in sorted(set.intersection(*(set(each) for each in named))):
        mine = [each[rank] for each in named]
        moved = len({one.part for one in mine}) > 1
        return msgspec.structs.replace(case, outcome="software" if moved else "again", accused=mine[-1])
    gpus = set.intersection(*({one.gpu for one in each.values()} for each in named)) - {""}
    stayed = next((one for one in strike.accused if one.gpu in gpus), None)
    return msgspec.structs.replace(case, outcome="hardware", accused=stayed) if stayed else case


def agreed(case: Case, places: Mapping[int, Place]) -> Case:
    """The case when all replicas agreed at its step; `places`: where the ranks run now."""
    if case.accused is None or case.outcome != "again":
        return msgspec.structs.replace(case, outcome="transient")
    place = places.get(case.accused.rank, Place())
    moved = (place.gpu or place.node) != case.accused.part
    return msgspec.structs.replace(case, outcome="hardware" if moved else "transient")


def read(folder: Path | None) -> File:
    """What the folder's file says; nothing where there is none that can be read."""
    if folder is None:
        return File()
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=File)
    except (OSError, ValueError):
        return File()


def write(folder: Path | None, file: File) -> None:
    """Replace the folder's file, durable on return. Raises OSError."""
    if folder is None:
        return
    file.closed = file.closed[-KEPT:]
    leave(folder / FILE, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
