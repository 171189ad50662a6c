"""What a faulty GPU, or node, has touched: ranks, steps, checkpoints, and what continues or was exported from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from medevac.core.decision import Struct
from medevac.core.jobs import Checkpoint


class Touched(Struct, frozen=True, kw_only=True):
    """A checkpoint that holds what the part has computed. `why`: it took part, or which checkpoint this continues."""

    step: int
    sealed_at: float
    attempt: int
    ranks: tuple[int, ...]
    why: str


class Traced(Struct, frozen=True, kw_only=True):
    """One job. `steps` are stretches (first, last), `ranks` those that the part was, `attempts` those it ran in."""

    job: str
    checkpoints: tuple[Touched, ...]
    steps: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    attempts: tuple[int, ...]
    exports: tuple[str, ...] = ()


def trace(job: str, known: Mapping[int, Checkpoint], part: str, since: float) -> Traced:
    """All that `part` (a GPU's UUID or PCI address, or a node's name) took part in after `since`, by the seals.

    A checkpoint sealed later holds steps from before: all since its parent are counted, for when in between the fault
    began no seal says.
    """
    touched: dict[int, Touched] = {}
    for step, one in sorted(known.items()):
        if one.sealed_at is None:
            continue
        ranks = tuple(rank.rank for rank in one.ranks if part in {rank.gpu_uuid, rank.pci, rank.node} - {""})
        mine = bool(ranks) and one.sealed_at >= since
        parent = touched.get(one.parent) if one.parent is not None and one.parent != step else None
        if not mine and parent is None:
            continue
        why = "it took part" if mine else f"it continues step {one.parent}"
        touched[step] = Touched(
            step=step, sealed_at=one.sealed_at, attempt=one.attempt, ranks=ranks if mine else (), why=why
        )
    stretches = [((known[step].parent or 0) + 1, step) for step in touched]
    return Traced(
        job=job,
        checkpoints=tuple(touched.values()),
        steps=_joined(stretches),
        ranks=tuple(sorted({rank for one in touched.values() for rank in one.ranks})),
        attempts=tuple(sorted({one.attempt for one in touched.values() if one.ranks})),
    )


def _joined(stretches: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Stretches that touch made one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
