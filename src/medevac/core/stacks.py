"""What the ranks of a silent job are at: by their stacks, and by how busy their GPUs are.

Ranks that wait for somebody stand at one place; who is elsewhere is waited for. A GPU that spins in a collective is as
busy as one that computes, so that busy GPUs say little, and idle ones no more than that nobody computes: weak evidence,
which names and never confirms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from medevac.core.diagnose_case import Clue, Named

LOADER = ("_next_data", "_try_get_data", "_get_data", "_process_next_batch")
"""Functions of PyTorch's DataLoader (torch/utils/data/dataloader.py) in which a rank waits for its data."""
COLLECTIVE = "torch/distributed/"
BACKWARD = "_engine_run_backward"
"""DDP reduces inside of the backward pass, of which Python shows only this (torch/autograd/graph.py)."""
IDLE, BUSY = 5.0, 90.0
"""Percent of the time in which a GPU ran some kernel; NCCL's kernels spin while they wait."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One call: function, file, line."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({self.file.rpartition('/')[2]}:{self.line})"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a GPU is: percent of the time, Watts."""

    utilization: float
    power_w: float | None = None


def of_stacks(stacks: Mapping[int, tuple[Frame, ...]], nodes: Mapping[int, str]) -> Iterator[Clue]:
    """By rank the frames of its main thread, innermost first: who is elsewhere than most."""
    places: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
    for rank, frames in sorted(stacks.items()):
        if frames:
            places[frames].append(rank)
    seen = sum(len(ranks) for ranks in places.values())
    frames, most = max(places.items(), key=lambda item: len(item[1]), default=((), []))
    if seen < 2 or len(most) * 2 <= seen:
        return
    if len(most) == seen:
        if _collective(frames):
            text = f"all {seen} ranks that were seen wait in {_telling(frames)}: none of them holds it up by itself"
            yield _clue("stack-collective", text, None, "")
        return
    for others, ranks in places.items():
        for rank in ranks if others != frames else ():
            loads = any(frame.name.rpartition(".")[2] in LOADER for frame in others)
            text = f"rank {rank} is in {_telling(others)}, {len(most)} other ranks in {_telling(frames)}"
            yield _clue("stack-loader" if loads else "stack-outside", text, rank, nodes.get(rank, ""))


def of_loads(loads: Mapping[int, tuple[Load, ...]], nodes: Mapping[int, str]) -> Iterator[Clue]:
    """By rank the readings of its GPUs in a short time: who is idle while most spin."""
    known = {rank: readings for rank, readings in sorted(loads.items()) if readings}
    idle = [rank for rank, seen in known.items() if all(one.utilization <= IDLE for one in seen)]
    busy = [rank for rank, seen in known.items() if all(one.utilization >= BUSY for one in seen)]
    if not known:
        return
    if len(idle) == len(known):
        power = [one.power_w for seen in known.values() for one in seen if one.power_w is not None]
        watts = f", at most {max(power):.0f} W" if power else ""
        text = f"the GPUs of all {len(known)} ranks that were seen are idle{watts}: nobody computes, and none spins"
        yield _clue("gpu-idle", text, None, "")
    elif len(busy) == len(known):
        text = f"the GPUs of all {len(known)} ranks that were seen are busy: they compute, or spin in a collective"
        yield _clue("gpu-busy", text, None, "")
    elif idle and len(busy) * 2 > len(known):
        for rank in idle:
            text = f"the GPU of rank {rank} is idle while those of {len(busy)} others are busy: they may wait for it"
            yield _clue("gpu-idle", text, rank, nodes.get(rank, ""))


def _collective(frames: tuple[Frame, ...]) -> bool:
    return any(COLLECTIVE in frame.file or frame.name == BACKWARD for frame in frames)


def _telling(frames: tuple[Frame, ...]) -> str:
    """The frame that says most: of a collective the outermost one of PyTorch's, else where it is."""
    own = [frame for frame in frames if COLLECTIVE in frame.file and "wrapper" not in frame.name]
    return str(own[-1] if own else frames[0])


def _clue(signature: str, text: str, rank: int | None, node: str) -> Clue:
    names: Named = "none" if rank is None else "rank"
    return Clue(signature=signature, role="symptom", symptom="hang", names=names, text=text, rank=rank, node=node)
