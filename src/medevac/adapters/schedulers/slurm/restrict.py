"""A restricted node: work prefers others, by weight and a feature; or only one partition may use it."""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.hostlist import compress
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.memory import Memory
from medevac.adapters.schedulers.slurm.nodemark import NodeMark, node_mark, with_node_mark
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.values import Partition, SlurmNode
from medevac.core.actions import GiveBack, Repair, Restrict
from medevac.ports.errors import OutcomeUnknown, PortError, Unsupported

FEATURE = "medevac_restricted"
log = structlog.get_logger(__name__)


class Restrictions:
    """The mark in the node's Comment is written before anything is changed, and taken off last. One change at a time:
    nodes share partitions.
    """

    def __init__(self, commands: Commands, look: Look, memory: Memory, site: SlurmSettings) -> None:
        self._run = commands.run
        self._look = look
        self._memory = memory
        self._site = site
        self._turn = asyncio.Lock()

    async def add(self, action: Restrict) -> None:
        if action.id in self._memory.nodes().done:
            return
        node = _complete(await self._look.part(action.node, action.gpu))
        mark, target = node_mark(await self._look.comment(node.name)), action.gpu or action.node
        if not mark.low:
            mark = replace(mark, weight=node.weight)
        async with self._turn:
            await self._apply(node, replace(mark, low={**mark.low, target: action.cause or action.id}))
        self._memory.node_order_done(action.id)

    async def remove(self, action: GiveBack | Repair) -> None:
        """Undo what is ours; a weight that is not ours any more stays."""
        node = await self._look.node(action.node)
        mark, target = node_mark(await self._look.comment(node.name)), action.gpu or action.node
        if target not in mark.low:
            return
        low = {name: incident for name, incident in mark.low.items() if name != target}
        if not low:
            async with self._turn:
                await self._restore(_complete(node), mark)
        await self._write(node.name, replace(mark, low=low, left=mark.left if low else ()))

    async def again(self, nodes: dict[str, SlurmNode]) -> None:
        """Put back what a slurmctld that started anew has forgotten; never where a person changed a part of it."""
        for node in nodes.values():
            mark = node_mark(node.comment)
            if not mark.low or not node.complete or not self._forgotten(node, mark):
                continue
            try:
                async with self._turn:
                    marked = node_mark(await self._look.comment(node.name))
                    await self._apply(node, replace(marked, weight=node.weight))
                log.info("a restriction that Slurm had forgotten is put back", node=node.name)
            except PortError as problem:
                log.warning("a restriction that Slurm has forgotten is not put back", problem=str(problem))

    def _forgotten(self, node: SlurmNode, mark: NodeMark) -> bool:
        ours = FEATURE in (*node.features, *node.active) or node.weight == self._weight(mark.weight)
        return not ours and set(mark.left) <= set(node.partitions)

    def _weight(self, own: int) -> int:
        return max(own, self._site.restricted_weight)

    async def _apply(self, node: SlurmNode, mark: NodeMark) -> None:
        leave = await self._to_leave(node)
        mark = replace(mark, left=tuple(sorted({*mark.left, *(partition.name for partition in leave)})))
        await self._write(node.name, mark)
        weight = self._weight(mark.weight)
        await self._set(node.name, weight, _with(node.features), _with(node.active))
        for partition in leave:
            await self._set_nodes(partition, set(partition.nodes) - {node.name})
        now = await self._look.node(node.name)
        if now.weight != weight or FEATURE not in now.features or FEATURE not in now.active:
            raise OutcomeUnknown(f"node {node.name}: restricted, and it reads Weight={now.weight} {now.features}")

    async def _restore(self, node: SlurmNode, mark: NodeMark) -> None:
        weight = mark.weight if node.weight == self._weight(mark.weight) else node.weight
        await self._set(node.name, weight, _without(node.features), _without(node.active))
        known = {partition.name: partition for partition in await self._look.partitions()}
        for name in mark.left:
            if name in known and node.name not in known[name].nodes:
                await self._set_nodes(known[name], {*known[name].nodes, node.name})
        now = await self._look.node(node.name)
        if now.weight != weight or FEATURE in (*now.features, *now.active):
            raise OutcomeUnknown(f"node {node.name}: given back, and it reads Weight={now.weight} {now.features}")

    async def _to_leave(self, node: SlurmNode) -> list[Partition]:
        """The other partitions of the node, where the site names one for restricted nodes and the node is in it."""
        kept = self._site.restricted_partition
        if not kept:
            return []
        if kept not in node.partitions:
            log.warning("a restricted node is not in the partition for those: only preferred less", node=node.name)
            return []
        mine = [one for one in await self._look.partitions() if node.name in one.nodes and one.name != kept]
        fixed = [one.name for one in mine if one.node_sets or len(one.nodes) < 2]
        if fixed:
            log.warning("a partition is left as it is: node sets, or no other node", partitions=fixed)
        return [one for one in mine if one.name not in fixed]

    async def _set(self, node: str, weight: int, features: tuple[str, ...], active: tuple[str, ...]) -> None:
        """What is active must be available: both in one command (tried on 22.05 in both directions)."""
        words = (f"AvailableFeatures={','.join(features)}", f"ActiveFeatures={','.join(active)}")
        await self._run("scontrol", "update", f"NodeName={node}", f"Weight={weight}", *words)

    async def _set_nodes(self, partition: Partition, nodes: set[str]) -> None:
        await self._run("scontrol", "update", f"PartitionName={partition.name}", f"Nodes={compress(nodes)}")
        now = next((one for one in await self._look.partitions() if one.name == partition.name), None)
        if now is None or set(now.nodes) != nodes:
            raise OutcomeUnknown(f"partition {partition.name}: changed, and it reads otherwise")

    async def _write(self, node: str, mark: NodeMark) -> None:
        before = await self._look.comment(node)
        after = with_node_mark(before, mark)
        if after == before:
            return
        await self._run("scontrol", "update", f"NodeName={node}", f"Comment={after}")
        if node_mark(await self._look.comment(node)) != node_mark(after):
            raise OutcomeUnknown(f"node {node}: its mark was written, and reads otherwise")


def _complete(node: SlurmNode) -> SlurmNode:
    """What is set on a node is made from what was read of it, never from what was left out."""
    if not node.complete:
        raise Unsupported(f"node {node.name}: Slurm does not tell its weight and features: they are not changed")
    return node


def _with(features: tuple[str, ...]) -> tuple[str, ...]:
    return features if FEATURE in features else (*features, FEATURE)


def _without(features: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(feature for feature in features if feature != FEATURE)
