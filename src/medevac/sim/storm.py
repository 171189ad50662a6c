"""The demo's story: an ECC storm that one failing power supply starts. Pure: a seed gives the whole plan.

Three GPUs of one rack remap row after row and correct more and more errors; then one of them, which the job uses,
meets an error that cannot be corrected, and what stood in that memory is wrong from that moment on. The seed moves
rack, GPUs and times, and may take the spare GPUs away.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from medevac.core.events import Gpu, Node
from medevac.sim.lines import double_bit_error, row_remapped

RACKS = 2
NODES_PER_RACK = 2
JOB_GPUS_PER_NODE = 2
RANKS = RACKS * NODES_PER_RACK * JOB_GPUS_PER_NODE
SPARES_CHANCE = 0.7
ROW_BYTES = 1024
_BUSES = (0x1B, 0x3B, 0x5D, 0x9B, 0xBA, 0xCB)
# Ten remapped rows are normal, the eleventh is one too many (the standard rule): they come with the worst error.
_ROWS_BEFORE = (8, 10)
_ROWS_IN_ALL = (12, 15)


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Something that a node shows `at` seconds after the plan's start."""

    at: float
    node: str


class KernelMessage(Shown, frozen=True, kw_only=True, tag=True):
    """A line of the node's kernel log, without its prefix."""

    gpu: str
    xid: int
    message: str


class Environment(Shown, frozen=True, kw_only=True, tag=True):
    """A line of the node's environment log."""

    rack: str
    component: Literal["psu", "fan", "inlet"]
    state: str
    text: str


class Counters(Shown, frozen=True, kw_only=True, tag=True):
    """The totals of one GPU's error counters from now on; degrees Celsius."""

    gpu: str
    pci: str
    sbe: int = 0
    dbe: int = 0
    remapped_rows: int = 0
    temperature: float = 55.0


class Corruption(Shown, frozen=True, kw_only=True, tag=True):
    """What stands in this GPU's memory is no longer what was written there."""

    gpu: str


AnyShown: TypeAlias = KernelMessage | Environment | Counters | Corruption


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and what happens to it. GPUs are named by UUID."""

    seed: int
    nodes: tuple[Node, ...]
    baseline: tuple[Counters, ...]
    """Each GPU's counters before anything happens."""
    shown: tuple[AnyShown, ...] = ()
    """In order of time."""
    rack: str = ""
    stormy: tuple[str, ...] = ()
    """The GPUs that remap too many rows; the first is the victim."""
    decoy: str = ""
    """A GPU that fails beside the job, unused by it."""

    @property
    def victim(self) -> str:
        """The GPU whose memory goes bad, "" in a plan without a fault."""
        return self.stormy[0] if self.stormy else ""

    @classmethod
    def plan(cls, seed: int, *, fault: bool = True, decoy: bool = False, spares: bool | None = None) -> Storm:
        """The plan of a seed. `spares`: all there, none there, or (None) as the seed has it.

        A decoy is a spare GPU: a plan with one has spares.
        """
        rng = random.Random(seed)
        drawn = rng.random() < SPARES_CHANCE
        nodes = _cluster(rng, spares=decoy or (drawn if spares is None else spares))
        baseline = {gpu.uuid: _baseline(rng, node, gpu) for node in nodes for gpu in node.gpus}
        rack = rng.choice(sorted({node.rack for node in nodes}))
        start = round(rng.uniform(0.2, 1.5), 3)
        stormy = _stormy(rng, nodes, rack) if fault else ()
        unused = _spare(rng, nodes, rack) if decoy else ""
        shown: list[AnyShown] = []
        if fault:
            shown += _power(nodes, rack, start)
            shown += _storm(rng, [baseline[gpu] for gpu in stormy], start + 0.3)
        if unused:
            shown += _death(rng, baseline[unused], start + rng.uniform(0.5, 2.0))
        return cls(
            seed=seed,
            nodes=nodes,
            baseline=tuple(baseline.values()),
            shown=tuple(sorted(shown, key=lambda one: one.at)),
            rack=rack if fault else "",
            stormy=stormy,
            decoy=unused,
        )


def _cluster(rng: random.Random, *, spares: bool) -> tuple[Node, ...]:
    places = [(rack, NODES_PER_RACK * rack + place) for rack in range(RACKS) for place in range(NODES_PER_RACK)]
    return tuple(
        Node(
            name=f"node{node + 1}",
            rack=f"rack{rack + 1}",
            feed=f"feed{rack + 1}",
            gpus=_gpus(rng, JOB_GPUS_PER_NODE + spares),
        )
        for rack, node in places
    )


def _gpus(rng: random.Random, count: int) -> tuple[Gpu, ...]:
    buses = sorted(rng.sample(_BUSES, JOB_GPUS_PER_NODE + 1))
    names = [f"GPU-{uuid.UUID(int=rng.getrandbits(128), version=4)}" for _ in buses]
    return tuple(
        Gpu(index=index, uuid=name, pci=f"0000:{bus:02x}:00.0")
        for index, (bus, name) in enumerate(zip(buses[:count], names, strict=False))
    )


def _baseline(rng: random.Random, node: Node, gpu: Gpu) -> Counters:
    return Counters(
        at=0.0,
        node=node.name,
        gpu=gpu.uuid,
        pci=gpu.pci,
        sbe=rng.randint(0, 3),
        temperature=round(rng.uniform(48, 62), 1),
    )


def _stormy(rng: random.Random, nodes: tuple[Node, ...], rack: str) -> tuple[str, ...]:
    inside = [gpu for node in nodes if node.rack == rack for gpu in node.gpus]
    victim = rng.choice([gpu.uuid for gpu in inside if gpu.index < JOB_GPUS_PER_NODE])
    return victim, *rng.sample([gpu.uuid for gpu in inside if gpu.uuid != victim], 2)


def _spare(rng: random.Random, nodes: tuple[Node, ...], stormy_rack: str) -> str:
    spare = [node.gpus[JOB_GPUS_PER_NODE].uuid for node in nodes if node.rack != stormy_rack]
    return rng.choice(spare)


def _power(nodes: tuple[Node, ...], rack: str, at: float) -> list[AnyShown]:
    text = "PSU 2: output voltage below lower critical threshold"
    return [
        Environment(at=at, node=node.name, rack=rack, component="psu", state="failed", text=text)
        for node in nodes
        if node.rack == rack
    ]


def _storm(rng: random.Random, gpus: list[Counters], start: float) -> list[AnyShown]:
    """Rows spread over seconds, then in one breath the error that cannot be corrected and the rows over the limit."""
    worst_at = round(start + rng.uniform(2.5, 4.0), 3)
    shown: list[AnyShown] = []
    for number, before in enumerate(gpus):
        early, total = rng.randint(*_ROWS_BEFORE), rng.randint(*_ROWS_IN_ALL)
        times = sorted(round(rng.uniform(start, worst_at - 0.2), 3) for _ in range(early))
        late = [round(worst_at + 0.001 * n, 3) for n in range(1, total - early + 1)]
        dbe_at = worst_at if number == 0 else None
        shown += _decline(rng, before, times + late, dbe_at)
    return shown


def _death(rng: random.Random, before: Counters, at: float) -> list[AnyShown]:
    return list(_decline(rng, before, [round(at + 0.02, 3)], round(at, 3)))


def _decline(rng: random.Random, before: Counters, rows_at: list[float], dbe_at: float | None) -> Iterator[AnyShown]:
    """One GPU's remapped rows at these times, each another one, and an uncorrectable error in between."""
    addresses = [row * ROW_BYTES for row in rng.sample(range(0x10000, 0x4000000), len(rows_at))]
    now = before
    for at in sorted([*rows_at, *([] if dbe_at is None else [dbe_at])]):
        if at == dbe_at:
            address = addresses[-1]  # the row that is remapped next
            now = msgspec.structs.replace(now, at=at, dbe=now.dbe + 1)
            yield Corruption(at=at, node=before.node, gpu=before.gpu)
            xid, message = 48, double_bit_error(before.pci, address, rng.randrange(16), rng.randrange(4))
        else:
            address = addresses.pop()
            now = _one_row_less(rng, now, at)
            xid, message = 63, row_remapped(before.pci, address)
        yield now
        yield KernelMessage(at=at, node=before.node, gpu=before.gpu, xid=xid, message=message)


def _one_row_less(rng: random.Random, now: Counters, at: float) -> Counters:
    return msgspec.structs.replace(
        now,
        at=at,
        sbe=now.sbe + rng.randint(20, 60),
        remapped_rows=now.remapped_rows + 1,
        temperature=round(now.temperature + rng.uniform(0.0, 0.5), 1),
    )
