"""Where ranks go: on the GPUs they had, then on spares, then fewer of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from medevac.core.decision import Struct
from medevac.core.events import Gpu, Node, RankPlace


class Slot(Struct, frozen=True, kw_only=True):
    """GPUs of one node that one rank can have; `turn` orders slots so that ranks spread over the nodes."""

    node: str
    gpus: tuple[str, ...]
    turn: int


def place(
    nodes: Sequence[Node],
    ranks: int,
    gpus_per_rank: int = 1,
    out: Collection[str] = (),
    before: Sequence[RankPlace] = (),
    least: int = 1,
) -> tuple[RankPlace, ...] | None:
    """Places for `least` to `ranks` ranks, none of them on what is in `out` (GPU UUIDs and node names).

    `ranks` 0 is one process with all usable GPUs of the first node that has any. `gpus_per_rank` 0 is one process a
    node, with all usable GPUs of it (a launcher's agents). A cluster without GPUs places ranks on its nodes in turn.
    None: too little is left.
    """
    usable = [node for node in nodes if node.name not in out]
    if not usable:
        return None
    if not any(node.gpus for node in nodes):
        found = _without_gpus(usable, max(ranks, 1) if gpus_per_rank else min(ranks, len(usable)))
    elif ranks == 0:
        return _one_process(usable, out)
    else:
        slots = [slot for node in usable for slot in _slots(node, gpus_per_rank, out)]
        had = {place.gpus if gpus_per_rank else place.node for place in before}
        kept = sorted(slots, key=lambda slot: ((slot.gpus if gpus_per_rank else slot.node) not in had, slot.turn))
        found = _numbered(kept[:ranks], [node.name for node in nodes])
    return found if len(found) >= max(least, 1) else None


def _slots(node: Node, size: int, out: Collection[str]) -> list[Slot]:
    free: list[Gpu] = sorted((gpu for gpu in node.gpus if gpu.uuid not in out), key=lambda gpu: gpu.index)
    if not size:
        return [Slot(node=node.name, gpus=tuple(gpu.uuid for gpu in free), turn=0)] if free else []
    groups = [free[i : i + size] for i in range(0, len(free) - size + 1, size)]
    return [
        Slot(node=node.name, gpus=tuple(gpu.uuid for gpu in group), turn=group[0].index // size) for group in groups
    ]


def _one_process(nodes: Sequence[Node], out: Collection[str]) -> tuple[RankPlace, ...] | None:
    for node in nodes:
        gpus = tuple(gpu.uuid for gpu in node.gpus if gpu.uuid not in out)
        if gpus:
            return (RankPlace(rank=0, node=node.name, gpus=gpus),)
    return None


def _without_gpus(nodes: Sequence[Node], ranks: int) -> tuple[RankPlace, ...]:
    slots = [Slot(node=nodes[i % len(nodes)].name, gpus=(), turn=i) for i in range(ranks)]
    return _numbered(slots, [node.name for node in nodes])


def _numbered(slots: Sequence[Slot], order: Sequence[str]) -> tuple[RankPlace, ...]:
    rank, places = 0, []
    for name in order:
        mine = sorted((slot for slot in slots if slot.node == name), key=lambda slot: slot.turn)
        for local, slot in enumerate(mine):
            places.append(RankPlace(rank=rank, node=name, gpus=slot.gpus, local_rank=local))
            rank += 1
    return tuple(places)
